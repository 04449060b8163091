"""Turns what ranks tell each other into JSON and back: plain values, and the dataclasses and enums of this package.

Not pickle: what arrives may come from anyone who can reach the port of a rank, and unpickling runs code.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from typing import Any

_KIND, _VALUE = "$", "v"
_PACKAGE = __name__.rpartition(".")[0]
_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "dict": dict}


def dumps(thing: Any) -> bytes:
    """The bytes of `thing`. Raises TypeError for a type that has no form here."""
    return json.dumps(_encoded(thing), separators=(",", ":")).encode()


def loads(data: bytes | bytearray) -> Any:
    """What `dumps` was given. Raises ValueError for bytes that it did not make."""
    try:
        return _decoded(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"another rank sent {len(data)} bytes that Windlass did not write: {error}") from error


def _encoded(thing: Any) -> Any:
    kind = type(thing)
    if thing is None or kind in (bool, int, float, str):
        return thing
    if kind is list:
        return [_encoded(item) for item in thing]
    if kind is dict:
        return {_KIND: "dict", _VALUE: [[_encoded(key), _encoded(item)] for key, item in thing.items()]}
    if kind in (tuple, set):
        return {_KIND: kind.__name__, _VALUE: [_encoded(item) for item in thing]}
    if kind.__module__.rpartition(".")[0] == _PACKAGE and "." not in kind.__qualname__:
        name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
        if isinstance(thing, enum.Enum):
            return {_KIND: name, _VALUE: thing.value}
        if dataclasses.is_dataclass(kind):
            return {_KIND: name, _VALUE: [_encoded(getattr(thing, field.name)) for field in dataclasses.fields(thing)]}
    raise TypeError(f"ranks cannot send each other a {kind.__module__}.{kind.__qualname__}")


def _decoded(data: Any) -> Any:
    if isinstance(data, list):
        return [_decoded(item) for item in data]
    if not isinstance(data, dict):
        return data
    kind, value = data[_KIND], data[_VALUE]
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](_decoded(value))
    found = _type_named(kind)
    return found(value) if issubclass(found, enum.Enum) else found(*_decoded(value))


def _type_named(name: str) -> Any:
    """A dataclass or enum that a module of this package defines; no other name may be called."""
    module, _, own = name.partition(".")
    found = vars(sys.modules[f"{_PACKAGE}.{module}"])[own]
    is_ours = isinstance(found, type) and found.__module__ == f"{_PACKAGE}.{module}"
    if not is_ours or not (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)):
        raise ValueError(f"{name} cannot be sent")
    return found
