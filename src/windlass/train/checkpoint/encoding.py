"""Turns state into JSON that keeps Python's types, and back; no pickle unless the user chooses it.

What JSON has goes as it is. The rest goes as an object with the key `$`, the name of its type:
`{"$": "tuple", "v": [1, 2]}`. Tensors stay outside: a tensor in the state is `{"$": "tensor", "v": name}`.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_TAG, _VALUE = "$", "v"
_PICKLE_HINT = (
    "state_dict() should hold numbers, strings, bytes, None, tensors, NumPy arrays, and lists, tuples, sets and dicts "
    "of these; Checkpoint(..., allow_pickle=True) stores anything else by pickle, which runs code when it is loaded"
)


@dataclass(frozen=True)
class TensorName:
    """Stands in encoded state where a tensor was."""

    name: str


class Encoder:
    """Encodes one tree of state, naming the tensors in it."""

    def __init__(self, keep: Callable[[str, Any], str], *, allow_pickle: bool) -> None:
        """`keep` is given each tensor with its path and answers by what name it will be found."""
        self._keep = keep
        self._allow_pickle = allow_pickle

    def encode(self, value: Any, path: str) -> Any:
        """The JSON of `value`. Raises TypeError that names the path of what has none."""
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
        if kind in (dict, OrderedDict, Counter) or (kind is defaultdict and value.default_factory in _FACTORIES):
            return self._encode_dict(kind, value, path)
        if kind in (tuple, set, frozenset):
            return _tagged(kind.__name__, [self._encode(item, f"{path}.{n}") for n, item in enumerate(value)])
        if kind in (bytes, bytearray):
            return _tagged(kind.__name__, _to_base64(value))
        if kind is complex:
            return _tagged("complex", [self._encode(value.real, path), self._encode(value.imag, path)])
        return self._encode_of_libraries(value, path)

    def _encode_dict(self, kind: type, value: Any, path: str) -> Any:
        pairs = [
            [self._encode(key, f"the key {key!r} of {path}"), self._encode(item, f"{path}.{key}")]
            for key, item in value.items()
        ]
        coded = _tagged(kind.__name__, pairs)
        if kind is defaultdict and value.default_factory is not None:
            coded["of"] = value.default_factory.__name__
        return coded

    def _encode_of_libraries(self, value: Any, path: str) -> Any:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None:
            if isinstance(value, torch.Tensor):
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
            import pickle

            try:
                return _tagged("pickle", _to_base64(pickle.dumps(value)))
            except Exception as error:
                raise TypeError(f"{path} cannot be kept, even by pickle: {error}") from error
        kind_name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{path} cannot be kept in a checkpoint: it is a {kind_name}. {_PICKLE_HINT}")


class Decoder:
    """Decodes what `Encoder` made; tensors come back as `TensorName`."""

    def __init__(self, *, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle

    def decode(self, coded: Any, path: str) -> Any:
        """The value. Raises ValueError that names the path of what is not understood."""
        if isinstance(coded, list):
            return [self.decode(item, f"{path}.{number}") for number, item in enumerate(coded)]
        if not isinstance(coded, dict):
            return coded
        if _TAG not in coded:
            return {key: self.decode(item, f"{path}.{key}") for key, item in coded.items()}
        try:
            return self._decode_tagged(coded[_TAG], coded.get(_VALUE), coded, path)
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    def _decode_tagged(self, kind: str, value: Any, coded: Mapping[str, Any], path: str) -> Any:
        if kind == "tensor":
            return TensorName(value)
        if kind == "float":
            return float(value)
        if kind in ("tuple", "set", "frozenset"):
            items = [self.decode(item, f"{path}.{number}") for number, item in enumerate(value)]
            return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
        if kind in ("dict", "OrderedDict", "Counter", "defaultdict"):
            return self._decode_dict(kind, value, coded, path)
        if kind == "bytes":
            return base64.b64decode(value, validate=True)
        if kind == "bytearray":
            return bytearray(base64.b64decode(value, validate=True))
        if kind == "complex":
            return complex(*(self.decode(part, path) for part in value))
        if kind.startswith("torch."):
            return _decode_torch(kind, value)
        if kind.startswith("numpy."):
            return _decode_numpy(kind, value, coded)
        if kind == "pickle":
            return self._unpickle(value, path)
        raise ValueError(f"{path} is of a kind that this version of Windlass does not know: {kind!r}")

    def _decode_dict(self, kind: str, pairs: Any, coded: Mapping[str, Any], path: str) -> Any:
        made: Any
        if kind == "defaultdict":
            made = defaultdict(next((of for of in _FACTORIES if of and of.__name__ == coded.get("of")), None))
        else:
            made = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[kind]()
        for key, item in pairs:
            plain = self.decode(key, path)
            made[plain] = self.decode(item, f"{path}.{plain}")
        return made

    def _unpickle(self, value: str, path: str) -> Any:
        if not self._allow_pickle:
            raise ValueError(
                f"{path} was stored by pickle, which runs code when it is loaded; if you trust whoever made this "
                "checkpoint, restore with Checkpoint(..., allow_pickle=True)"
            )
        import pickle

        return pickle.loads(base64.b64decode(value, validate=True))


_FACTORIES: tuple[Any, ...] = (None, dict, list, int, float, set, str, bool)
"""What a defaultdict may make by itself; any other would be code."""


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
