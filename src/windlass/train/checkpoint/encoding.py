"""Encodes state and messages between ranks as JSON that preserves Python types, without pickle unless allowed.

JSON values are stored unchanged. Other values become an object with the key `$`, the name of the type: `{"$": "tuple",
"v": [1, 2]}`. Tensors are stored separately: the state holds `{"$": "tensor", "v": name}`.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TAG, _VALUE = "$", "v"
_PICKLE_HINT = (
    "state_dict() should hold numbers, strings, bytes, None, tensors, NumPy arrays, and lists, tuples, sets and dicts "
    "of these; Checkpoint(..., allow_pickle=True) stores anything else by pickle, which runs code when it is loaded"
)


_SEQUENCES: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_BYTES: dict[str, Any] = {"bytes": bytes, "bytearray": bytearray}
_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": defaultdict}
_FACTORIES: dict[Any, Any] = {of.__name__: of for of in (dict, list, int, float, set, str, bool)}
"""Factories of a defaultdict that are restored. Other factories are refused because they could run any code."""


class Encoder:
    """Encodes one tree of state and names the tensors in it."""

    def __init__(
        self, keep: Callable[[str, Any], str] | None = None, *, allow_pickle: bool = False, types: tuple[type, ...] = ()
    ) -> None:
        """`keep` is called with the path of each tensor and returns the tensor's name; `types` are dataclasses and
        enums.
        """
        self._keep = keep
        self._allow_pickle = allow_pickle
        self._types = types

    def encode(self, value: Any, path: str) -> Any:
        """Returns the JSON form of `value`. Raises TypeError with the path of a value that has none."""
        try:
            return self._encode(value, path)
        except RecursionError:
            raise TypeError(f"{path} is nested too deeply, or holds itself") from None

    def _encode(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else _tagged("float", repr(value))
        if kind is list:
            return [self._encode(item, f"{path}.{number}") for number, item in enumerate(value)]
        if kind is dict and all(type(key) is str and key != _TAG for key in value):
            return {key: self._encode(item, f"{path}.{key}") for key, item in value.items()}
        name = kind.__name__
        if kind is _DICTS.get(name):
            factory = getattr(value, "default_factory", None)
            if factory in (None, *_FACTORIES.values()):
                pairs = [
                    [self._encode(key, f"the key {key!r} of {path}"), self._encode(item, f"{path}.{key}")]
                    for key, item in value.items()
                ]
                return {**_tagged(name, pairs), **({"of": factory.__name__} if factory is not None else {})}
        if kind is _SEQUENCES.get(name):
            return _tagged(name, [self._encode(item, f"{path}.{number}") for number, item in enumerate(value)])
        if kind is _BYTES.get(name):
            return _tagged(name, _to_base64(value))
        if kind is complex:
            return _tagged(name, self._encode([value.real, value.imag], path))
        if kind in self._types:
            fields = (
                [value.value]
                if isinstance(value, enum.Enum)
                else [getattr(value, field.name) for field in dataclasses.fields(value)]
            )
            return _tagged(name, self._encode(fields, path))
        return self._encode_of_libraries(value, path)

    def _encode_of_libraries(self, value: Any, path: str) -> Any:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None:
            if isinstance(value, torch.Tensor) and self._keep is not None:
                return _tagged("tensor", self._keep(path, value))
            if isinstance(value, torch.Size):
                return _tagged("torch.Size", list(value))
            if isinstance(value, (torch.dtype, torch.device)):
                return _tagged("torch." + type(value).__name__, str(value))
        if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            array = numpy.asarray(value)
            if not array.dtype.hasobject and array.dtype.names is None:
                kind = "numpy.scalar" if isinstance(value, numpy.generic) else "numpy.array"
                coded = _tagged(kind, _to_base64(numpy.ascontiguousarray(array).tobytes()))
                return {**coded, "dtype": array.dtype.str, "shape": list(array.shape)}
        if self._allow_pickle:
            try:
                return _tagged("pickle", _to_base64(pickle.dumps(value)))
            except Exception as error:
                raise TypeError(f"{path} cannot be kept, even by pickle: {error}") from error
        kind_name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{path} cannot be kept in a checkpoint: it is a {kind_name}. {_PICKLE_HINT}")


class Decoder:
    """Decodes the output of `Encoder`."""

    def __init__(
        self,
        tensor: Callable[[Sequence[str], str], Any] | None = None,
        *,
        allow_pickle: bool = False,
        types: tuple[type, ...] = (),
    ) -> None:
        """`tensor` creates a tensor from its path in the tree and its name.

        Only `types` (dataclasses and enums) and the types of state are instantiated.
        """
        self._tensor = tensor
        self._allow_pickle = allow_pickle
        self._types = {kind.__name__: kind for kind in types}

    def decode(self, coded: Any, *path: str) -> Any:
        """Returns the decoded value. Raises ValueError with the path of a value that cannot be decoded."""
        if isinstance(coded, list):
            return [self.decode(item, *path, str(number)) for number, item in enumerate(coded)]
        if not isinstance(coded, dict):
            return coded
        if _TAG not in coded:
            return {key: self.decode(item, *path, key) for key, item in coded.items()}
        try:
            return self._decode_tagged(coded[_TAG], coded.get(_VALUE), coded, path)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"{'.'.join(path)} cannot be read: {error}") from error

    def _decode_tagged(self, kind: str, value: Any, coded: Mapping[str, Any], path: tuple[str, ...]) -> Any:
        if kind == "tensor" and self._tensor is not None:
            return self._tensor(path, value)
        if kind in self._types:
            return self._types[kind](*self.decode(value, *path))
        if kind == "float":
            return float(value)
        if kind in _SEQUENCES:
            return _SEQUENCES[kind]([self.decode(item, *path, str(number)) for number, item in enumerate(value)])
        if kind in _DICTS:
            return self._decode_dict(kind, value, coded, path)
        if kind in _BYTES:
            return _BYTES[kind](base64.b64decode(value, validate=True))
        if kind == "complex":
            return complex(*self.decode(value, *path))
        if kind.startswith("torch."):
            return _decode_torch(kind, value)
        if kind.startswith("numpy."):
            return _decode_numpy(kind, value, coded)
        if kind != "pickle":
            raise ValueError(f"{'.'.join(path)} has a type that this version of Windlass does not know: {kind!r}")
        if not self._allow_pickle:
            raise ValueError(
                f"{'.'.join(path)} was stored by pickle, which runs code when it is loaded; if you trust the source of "
                "this checkpoint, restore with Checkpoint(..., allow_pickle=True)"
            )
        return pickle.loads(base64.b64decode(value, validate=True))

    def _decode_dict(self, kind: str, pairs: Any, coded: Mapping[str, Any], path: tuple[str, ...]) -> Any:
        made = _DICTS[kind]()
        if kind == "defaultdict":
            made.default_factory = _FACTORIES.get(coded.get("of"))
        for key, item in pairs:
            plain = self.decode(key, *path)
            made[plain] = self.decode(item, *path, str(plain))
        return made


def _tagged(kind: str, value: Any) -> dict[str, Any]:
    return {_TAG: kind, _VALUE: value}


def _to_base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode_torch(kind: str, value: Any) -> Any:
    import torch

    if kind == "torch.Size":
        return torch.Size(value)
    if kind == "torch.device":
        return torch.device(value)
    found = getattr(torch, str(value).removeprefix("torch."), None)
    if kind != "torch.dtype" or not isinstance(found, torch.dtype):
        raise ValueError(f"{value!r} is no {kind}")
    return found


def _decode_numpy(kind: str, value: str, coded: Mapping[str, Any]) -> Any:
    import numpy

    dtype = numpy.dtype(coded["dtype"])
    if dtype.hasobject:
        raise ValueError("an array of objects would be a pickle")
    array = numpy.frombuffer(base64.b64decode(value, validate=True), dtype).reshape(coded["shape"]).copy()
    return array if kind == "numpy.array" else array[()]
