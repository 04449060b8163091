"""A document of another system that records which values were read; all other values are reported."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.importers.field_hints import hint_of, is_one_thing
from windlass.spec.positions import Path, found, spell

STDIN: Final = "standard input"
"""File name in messages for input that a command reads with `-`."""
GANGS: Final = frozenset(("coscheduling", "volcano", "gang", "gangScheduling"))
"""Kinds of gang scheduling, which an empty mapping selects."""


@dataclass(frozen=True, slots=True)
class UnmappedField:
    """A field of the document that has no equivalent in the job file."""

    field: str
    """Path: `spec.template.spec.hostNetwork`; with a prefix for other documents, `Service/web: spec.ports`."""
    line: int
    """Line of the file, from 1; 0 if unknown."""
    meaning: str
    """Purpose of the field."""
    instead: str
    """The field or action that replaces the imported field."""
    is_handled: bool = False
    """Whether the user need not do anything: Windlass does the same itself, or does not need the field."""


class ImportSource:
    """One document, with a record of which of its values were read or reported."""

    def __init__(self, value: Any, where: str, base: Path, lines: Mapping[Path, int]) -> None:
        self.value = value
        self.where = where
        """Name of the file."""
        self.label = ""
        """Prefix of the paths of a document other than the job: `Service/web`."""
        self._base = base
        self._lines = lines
        self.taken: set[Path] = set()
        """Paths whose whole value was read."""
        self.reported: dict[Path, UnmappedField] = {}
        """Paths whose whole value has no equivalent."""
        self.mistyped: dict[Path, str] = {}
        """Paths with a value of the wrong type, and the expected type."""
        self.remarks: list[UnmappedField] = []
        """Reports on paths that are read or absent."""

    @property
    def view(self) -> View:
        """The whole document."""
        return View(self, (), self.value)

    @property
    def is_read(self) -> bool:
        """Whether any value was read, other than `apiVersion` and `kind`."""
        return any(path not in (("apiVersion",), ("kind",)) for path in self.taken)

    def unmapped_field(self, path: Path, meaning: str, instead: str, is_handled: bool = False) -> UnmappedField:
        """Creates the report on a path."""
        return UnmappedField(self.spelled(path), self.line(path), meaning, instead, is_handled)

    def spelled(self, path: Path) -> str:
        """Returns the path as text, with the label of the document."""
        return ": ".join(part for part in (self.label, spell(path)) if part)

    def line(self, path: Path) -> int:
        """Returns the line of the value at a path, or of the nearest enclosing value."""
        whole = (*self._base, *path)
        for length in range(len(whole), -1, -1):
            if (line := self._lines.get(whole[:length])) is not None:
                return line
        return 0

    def rest(self) -> list[UnmappedField]:
        """Returns all fields without an equivalent, reported or not read, in the order of the file."""
        touched = {path[:length] for path in (*self.taken, *self.reported) for length in range(len(path) + 1)}
        rest = [*self.remarks, *self._rest((), self.value, touched)]
        return sorted(dict.fromkeys(rest), key=lambda one: one.line)

    def _rest(self, path: Path, value: Any, touched: set[Path]) -> Iterator[UnmappedField]:
        if path in self.reported:
            yield self.reported[path]
        elif path in self.taken or is_empty(value):
            return
        elif path in self.mistyped and path not in touched:
            yield self.unmapped_field(path, self.mistyped[path], "write it by hand")
        elif isinstance(value, dict | list) and (path in touched or not is_one_thing(path)):
            for step, below in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self._rest((*path, step), below, touched)
        else:
            yield self.unmapped_field(path, *hint_of(path))


class View:
    """A value at a path of a document; the value of an absent path is None."""

    def __init__(self, source: ImportSource, path: Path, value: Any) -> None:
        self.source = source
        self.path = path
        self.value = value

    def __bool__(self) -> bool:
        return self.value is not None

    def at(self, *steps: str | int) -> View:
        """Returns the value at a path below this one."""
        value, path = self.value, self.path
        for step in steps:
            path = (*path, step)
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                value = None
        return View(self.source, path, value)

    def items(self) -> list[tuple[str, View]]:
        """Returns the entries of a mapping."""
        if not isinstance(self.value, dict):
            self.expected("a mapping")
            return []
        return [(key, self.at(key)) for key in self.value]

    def each(self) -> list[View]:
        """Returns the entries of a list."""
        return [self.at(place) for place in range(len(self.value))] if isinstance(self.value, list) else []

    # -- values: one of another type than expected is not marked as read, so it is reported ----------------------------

    def text(self, *steps: str | int) -> str | None:
        """Returns non-empty text and marks it as read."""
        view = self.at(*steps)
        if isinstance(view.value, str) and view.value:
            return str(view.take())
        view.expected("text")
        return None

    def whole(self, *steps: str | int) -> int | None:
        """Returns a whole number and marks it as read."""
        view = self.at(*steps)
        if isinstance(view.value, int) and not isinstance(view.value, bool):
            return int(view.take())
        view.expected("a whole number")
        return None

    def count(self, *steps: str | int) -> int:
        """Returns a whole number from 1 and marks it as read; 1 without a value. Raises JobFileError for
        another value.
        """
        view = self.at(*steps)
        number = view.whole() if view else 1
        if number is None or number < 1:
            raise view.mistyped("a whole number from 1")
        return number

    def expected(self, kind: str) -> None:
        """Records for the report that a value is not of the expected type."""
        if self:
            self.source.mistyped.setdefault(self.path, f"expected {kind}, found {found(self.value)}")

    def scalar(self) -> str | int | float | None:
        """Returns text or a number and marks it as read."""
        is_one = isinstance(self.value, str | int | float) and not isinstance(self.value, bool)
        one: str | int | float | None = self.take() if is_one else None
        return one

    def texts(self, *steps: str | int) -> list[str]:
        """Returns a list of texts, with numbers as text, and marks it as read; empty without a value.

        Raises JobFileError for another value, because a command without some of its words would be a different command.
        """
        view = self.at(*steps)
        if view and not isinstance(view.value, list):
            raise view.mistyped("a list of texts")
        for entry in view.each():
            if entry.scalar() is None:
                raise entry.mistyped("text")
        return [str(entry.value) for entry in view.each()]

    def take(self) -> Any:
        """Returns the whole value and marks it as read."""
        self.source.taken.add(self.path)
        return self.value

    def take_if(self, usual: Any) -> bool:
        """Marks the value as read if it equals `usual`; returns whether it does."""
        is_usual = self.value == usual and type(self.value) is type(usual)
        if is_usual:
            self.take()
        return is_usual

    def report(self, meaning: str, instead: str, is_handled: bool = False) -> None:
        """Reports the value, if present, as without an equivalent; the first report of a path is kept."""
        if self:
            self.source.reported.setdefault(
                self.path, self.source.unmapped_field(self.path, meaning, instead, is_handled)
            )

    def remark(self, meaning: str, instead: str, is_handled: bool = False) -> None:
        """Reports a remark on the path, even if it has no value."""
        self.source.remarks.append(self.source.unmapped_field(self.path, meaning, instead, is_handled))

    def refused(self, message: str, hint: str = "") -> JobFileError:
        """Returns the error for a file that cannot be imported, at the line of the value."""
        line = self.source.line(self.path)
        return JobFileError([Problem(f"{self.source.where}:{line}", self.source.spelled(self.path), message, hint)])

    def mistyped(self, kind: str) -> JobFileError:
        """Returns the error for a value of the wrong type that would change the job: `a whole number`, `text`."""
        return self.refused(f"expected {kind}, found {found(self.value)}")


def argument(where: str) -> str:
    """Quotes a file name as an argument of a command."""
    return "-" if where == STDIN else shlex.quote(where)


def is_empty(value: Any) -> bool:
    """Whether a value is `null`, `{}` or `[]`, or contains only such values, except keys that are significant without a
    value.
    """
    if isinstance(value, dict):
        return GANGS.isdisjoint(value) and all(map(is_empty, value.values()))
    return all(map(is_empty, value)) if isinstance(value, list) else value is None
