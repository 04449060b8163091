"""Converts a value to JSON data: the attributes in the projection of its class, or else every field by name."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

from windlass.views.projections import projection
from windlass.worker.values import Value

View = TypeVar("View")
_PLAIN: Final = frozenset((str, int, float, bool, type(None)))


def to_json(value: Any) -> Any:
    """Converts a value to JSON data."""
    kind = type(value)
    if kind in _PLAIN:  # fast path: nearly all values in long lists of runs are plain
        return value
    if printed := projection(kind):
        return {one.name: to_json(one.read(value)) for one in printed}
    if names := _names(kind):
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Value):
        return value.to_json()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {to_json(key): to_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return value


def view_of(kind: type[View], *sources: Any, **more: Any) -> View:
    """Builds a view from equally named fields of the sources; the first source with the field wins. `more` adds or
    replaces fields.
    """
    classes = (kind, tuple(map(type, sources)), tuple(more))
    found = _found.get(classes)
    if found is None:  # once for all runs of a list
        names = [name for name in _names(kind) if name not in more]
        found = _found[classes] = tuple(
            (name, next(place for place, one in enumerate(sources) if hasattr(one, name))) for name in names
        )
    return kind(**{name: getattr(sources[place], name) for name, place in found}, **more)


def _names(kind: type) -> tuple[str, ...]:
    """Returns the names of a dataclass's fields that are part of its JSON; empty for other types."""
    found = _known.get(kind)
    if found is None:
        shown = [one.name for one in fields(kind) if one.metadata.get("json", True)] if is_dataclass(kind) else []
        found = _known[kind] = tuple(shown)
    return found


_known: Final[dict[type, tuple[str, ...]]] = {}
_found: Final[dict[tuple[type, tuple[type, ...], tuple[str, ...]], tuple[tuple[str, int], ...]]] = {}
"""For a view, the classes of its sources and the names of `more`: each field with the index of its source."""
