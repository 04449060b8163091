"""Frozen values with typed fields that are read from JSON data, with a check of every type, and written to JSON data.

A `Value` is declared like a frozen dataclass, and type checkers treat it as one. It is not a dataclass because creating
thirty dataclasses takes 30 ms at the start of each node and each short command.

Fields that have their defaults are not written. Unknown fields are ignored, unless the class has a field `more`, which
collects them, so that two versions can read each other's data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_options):
        """Replaces `typing.dataclass_transform`, which exists only from Python 3.11 on."""
        return lambda cls: cls


V = TypeVar("V", bound="Value")
MORE = "more"
"""Name of the field that contains undeclared fields."""
REQUIRED: Any = object()
"""Marks a field without a default."""


class ShapeError(ValueError):
    """Raised if JSON data does not match the declared type."""


@dataclass_transform(frozen_default=True)
class Value:
    """A frozen value. Its fields are the annotated attributes of its base classes and its class, in this order."""

    _defaults: ClassVar[dict[str, Any]] = {}
    """Defaults of the fields, by name."""
    _hints: ClassVar[dict[str, Any]] = {}
    """Types of the fields, resolved on first use."""
    _is_strict: ClassVar[bool] = False
    """Whether `from_json` rejects undeclared fields."""

    def __init_subclass__(cls) -> None:
        own = [name for name, hint in cls.__annotations__.items() if "ClassVar" not in str(hint)]
        cls._defaults = {**cls._defaults, **{name: getattr(cls, name, REQUIRED) for name in own}}
        cls._hints = {}
        # for `match` statements, which exist from Python 3.10 on
        type.__setattr__(cls, "__match_args__", tuple(cls._defaults))

    def __init__(self, *args: Any, **fields: Any) -> None:
        given = {**dict(zip(self._defaults, args)), **fields}  # noqa: B905 - `strict` came with Python 3.10
        if len(given) != len(args) + len(fields) or not self._defaults.keys() >= given.keys():
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(self._defaults)}, not {', '.join(given)}")
        found = {**self._defaults, **given}
        missing = [name for name, value in found.items() if value is REQUIRED]
        if missing:
            raise TypeError(f"{type(self).__name__}: required field missing: {', '.join(missing)}")
        self.__dict__.update(found)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in self._given())
        return f"{type(self).__name__}({', '.join(given)})"

    @classmethod
    def fields(cls) -> Mapping[str, Any]:
        """Returns the fields by name, with their defaults or REQUIRED."""
        return cls._defaults

    def replace(self: V, **changes: Any) -> V:
        """Returns a copy with some fields changed."""
        return type(self)(**{**{name: self.__dict__[name] for name in self._defaults}, **changes})

    def to_json(self) -> dict[str, Any]:
        """Returns the value as JSON data, without fields that have their defaults."""
        found = {name: _written(value) for name, value in self._given()}
        found.update(found.pop(MORE, {}))
        return found

    @classmethod
    def from_json(cls: type[V], data: Any) -> V:
        """Creates the value described by JSON data. Raises ShapeError."""
        if not isinstance(data, Mapping):
            raise ShapeError(f"expected an object, not {type(data).__name__}")
        if cls._is_strict and (unknown := [str(name) for name in data if name not in cls._defaults]):
            raise ShapeError(f"unknown field: {', '.join(unknown)}")
        hints = cls._hints = cls._hints or get_type_hints(cls)
        found: dict[str, Any] = {}
        for name, default in cls._defaults.items():
            if name == MORE:
                found[name] = {key: value for key, value in data.items() if key not in cls._defaults}
            elif name in data:
                try:
                    found[name] = read_as(hints[name], data[name])
                except ShapeError as error:
                    raise ShapeError(f"{name}: {error}") from None
            elif default is REQUIRED:
                raise ShapeError(f"{name}: required field missing")
        return cls(**found)

    def _given(self) -> Iterator[tuple[str, Any]]:
        """Yields the fields that differ from their defaults."""
        return (
            (name, self.__dict__[name]) for name, default in self._defaults.items() if self.__dict__[name] != default
        )


class StrictValue(Value):
    """A value that is written to JSON with all fields, and rejects unknown fields when read."""

    _is_strict = True

    def to_json(self) -> dict[str, Any]:
        """Returns the value as JSON data."""
        return {name: _written(self.__dict__[name]) for name in self._defaults}


_PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}
_OPTIONAL = (Union, getattr(__import__("types"), "UnionType", Union))


def read_as(hint: Any, value: Any) -> Any:
    """Converts JSON data to a value of type `hint`. Raises ShapeError."""
    if hint is Any:
        return value
    plain = _PLAIN.get(hint)
    if plain is not None:
        if isinstance(value, plain) and (hint is bool or not isinstance(value, bool)):
            return value
        raise ShapeError(f"expected {hint.__name__}, not {type(value).__name__}")
    if isinstance(hint, type) and issubclass(hint, Value):
        return hint.from_json(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            raise ShapeError(f"expected one of {', '.join(one.value for one in hint)}") from None
    origin, arguments = _parts(hint)
    if origin in _OPTIONAL:
        return None if value is None else read_as(arguments[0], value)
    if origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
        raise ShapeError(f"expected one of {', '.join(arguments)}")
    if origin is tuple and isinstance(value, (list, tuple)):
        if arguments[-1] is Ellipsis:
            return tuple(read_as(arguments[0], item) for item in value)
        if len(value) != len(arguments):
            raise ShapeError(f"expected {len(arguments)} items, not {len(value)}")
        return tuple(map(read_as, arguments, value))
    if origin is Mapping and isinstance(value, Mapping):
        return {read_as(arguments[0], name): read_as(arguments[1], item) for name, item in value.items()}
    raise ShapeError(f"expected {'a list' if origin is tuple else 'an object'}, not {type(value).__name__}")


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the origin and the arguments of a generic type, such as `tuple` and `str` for `tuple[str, ...]`."""
    return get_origin(hint), get_args(hint)


def _written(value: Any) -> Any:
    if isinstance(value, Value):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _written(item) for name, item in value.items()}
    return value


def json_safe(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON cannot express, by their names. Returns other values unchanged."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    return value
