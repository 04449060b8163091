"""Frozen values with typed fields, read from JSON data and written as such, with a check of every type.

A `Value` is declared like a frozen dataclass, and type checkers read it as one. It is not one, because to make thirty
dataclasses and to import what they need takes 30 ms, which each cold node and each short command would wait for.

A field that has its default is not written. A field that is not known is ignored, except where the class has a field
`more`, which takes all of them: so two versions can read each other's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_options):
        """In `typing` from Python 3.11 on."""
        return lambda cls: cls


V = TypeVar("V", bound="Value")
MORE = "more"
"""The field that holds what a class does not declare."""
REQUIRED: Any = object()
"""In place of a default, of a field that has none."""


class ShapeError(ValueError):
    """JSON data that does not have the shape of its type."""


@dataclass_transform(frozen_default=True)
class Value:
    """A frozen value; its fields are what its class and the bases of that annotate, in this order."""

    _defaults: ClassVar[dict[str, Any]] = {}
    """The fields by name, with their defaults."""
    _hints: ClassVar[dict[str, Any]] = {}
    """Their types, once they are needed."""
    _is_strict: ClassVar[bool] = False
    """Whether `from_json` refuses unknown fields."""

    def __init_subclass__(cls) -> None:
        own = [name for name, hint in cls.__annotations__.items() if "ClassVar" not in str(hint)]
        cls._defaults = {**cls._defaults, **{name: getattr(cls, name, REQUIRED) for name in own}}
        cls._hints = {}
        type.__setattr__(cls, "__match_args__", tuple(cls._defaults))  # for `match`, from Python 3.10 on

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
        """The fields by name, with their defaults or REQUIRED."""
        return cls._defaults

    def replace(self: V, **changes: Any) -> V:
        """The same value with other fields."""
        return type(self)(**{**{name: self.__dict__[name] for name in self._defaults}, **changes})

    def to_json(self) -> dict[str, Any]:
        """The value as JSON data, without the fields that have their defaults."""
        found = {name: _written(value) for name, value in self._given()}
        found.update(found.pop(MORE, {}))
        return found

    @classmethod
    def from_json(cls: type[V], data: Any) -> V:
        """The value that JSON data stands for. Raises ShapeError."""
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
        """The fields that do not have their defaults."""
        return (
            (name, self.__dict__[name]) for name, default in self._defaults.items() if self.__dict__[name] != default
        )


class StrictValue(Value):
    """A value whose JSON data has all of its fields, also those with their defaults, and may have no others."""

    _is_strict = True

    def to_json(self) -> dict[str, Any]:
        """The value as JSON data."""
        return {name: _written(self.__dict__[name]) for name in self._defaults}


_PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}
_OPTIONAL = (Union, getattr(__import__("types"), "UnionType", Union))


def read_as(hint: Any, value: Any) -> Any:
    """The value that JSON data stands for, where the type is `hint`. Raises ShapeError."""
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
        return tuple(read_as(arguments[0], item) for item in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {read_as(arguments[0], name): read_as(arguments[1], item) for name, item in value.items()}
    raise ShapeError(f"expected {'a list' if origin is tuple else 'an object'}, not {type(value).__name__}")


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a generic type is made of, such as `tuple` and `str` of `tuple[str, ...]`."""
    return get_origin(hint), get_args(hint)


def _written(value: Any) -> Any:
    if isinstance(value, Value):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _written(item) for name, item in value.items()}
    return value
