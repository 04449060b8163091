"""A document of another system that records which values were read; all others are reported."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.importers.field_hints import hint_of, is_one_thing
from windlass.spec.places import Path, found, spell

STDIN: Final = "standard input"
"""Name of the file that a command gives as `-`."""
GANGS: Final = frozenset(("coscheduling", "volcano", "gang", "gangScheduling"))
"""Kinds of gang scheduling, which an empty mapping chooses."""


@dataclass(frozen=True, slots=True)
class Left:
    """A field of the document without equivalent in the job file."""

    field: str
    """Path: `spec.template.spec.hostNetwork`; of another document, `Service/web: spec.ports`."""
    line: int
    """Line of the file, from 1; 0 where it is not known."""
    meaning: str
    """What it was for."""
    instead: str
    """What to do about it."""
    is_ours: bool = False
    """Whether there is nothing to do: Windlass does the same by itself, or does not need it."""


class Source:
    """One document, and which of its values were read or reported."""

    def __init__(self, value: Any, where: str, base: Path, lines: Mapping[Path, int]) -> None:
        self.value = value
        self.where = where
        """Name of the file."""
        self.label = ""
        """Prefix of the paths of a document other than the job: `Service/web`."""
        self._base = base
        self._lines = lines
        self.taken: set[Path] = set()
        """Paths at which everything was read."""
        self.reported: dict[Path, Left] = {}
        """Paths at which everything is without equivalent."""
        self.mistyped: dict[Path, str] = {}
        """Paths at which a value of another type was expected, and what was."""
        self.remarks: list[Left] = []
        """Reports on paths that are read or absent."""

    @property
    def view(self) -> View:
        """The document as a whole."""
        return View(self, (), self.value)

    @property
    def is_read(self) -> bool:
        """Whether any value was read, other than `apiVersion` and `kind`."""
        return any(path not in (("apiVersion",), ("kind",)) for path in self.taken)

    def left(self, path: Path, meaning: str, instead: str, is_ours: bool = False) -> Left:
        """The report on a path."""
        return Left(self.spelled(path), self.line(path), meaning, instead, is_ours)

    def spelled(self, path: Path) -> str:
        """The path as text, with the label of the document."""
        return ": ".join(part for part in (self.label, spell(path)) if part)

    def line(self, path: Path) -> int:
        """Line of the value at a path, or of the nearest value around it."""
        whole = (*self._base, *path)
        for length in range(len(whole), -1, -1):
            if (line := self._lines.get(whole[:length])) is not None:
                return line
        return 0

    def rest(self) -> list[Left]:
        """All fields without equivalent, in the order of the file: those reported, and those not read."""
        touched = {path[:length] for path in (*self.taken, *self.reported) for length in range(len(path) + 1)}
        rest = [*self.remarks, *self._rest((), self.value, touched)]
        return sorted(dict.fromkeys(rest), key=lambda left: left.line)

    def _rest(self, path: Path, value: Any, touched: set[Path]) -> Iterator[Left]:
        if path in self.reported:
            yield self.reported[path]
        elif path in self.taken or is_empty(value):
            return
        elif path in self.mistyped and path not in touched:
            yield self.left(path, self.mistyped[path], "write it by hand")
        elif isinstance(value, dict | list) and (path in touched or not is_one_thing(path)):
            for step, below in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self._rest((*path, step), below, touched)
        else:
            yield self.left(path, *hint_of(path))


class View:
    """A value at a path of a document; an absent one has the value None."""

    def __init__(self, source: Source, path: Path, value: Any) -> None:
        self.source = source
        self.path = path
        self.value = value

    def __bool__(self) -> bool:
        return self.value is not None

    def at(self, *steps: str | int) -> View:
        """The value at a path below this one."""
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
        """The entries of a mapping."""
        if not isinstance(self.value, dict):
            self.expected("a mapping")
            return []
        return [(key, self.at(key)) for key in self.value]

    def each(self) -> list[View]:
        """The entries of a list."""
        return [self.at(place) for place in range(len(self.value))] if isinstance(self.value, list) else []

    # -- values: one of another type than expected is not marked as read, so it is reported ----------------------------

    def text(self, *steps: str | int) -> str | None:
        """Non-empty text, marked as read."""
        view = self.at(*steps)
        if isinstance(view.value, str) and view.value:
            return str(view.take())
        view.expected("text")
        return None

    def whole(self, *steps: str | int) -> int | None:
        """A whole number, marked as read."""
        view = self.at(*steps)
        if isinstance(view.value, int) and not isinstance(view.value, bool):
            return int(view.take())
        view.expected("a whole number")
        return None

    def count(self, *steps: str | int) -> int:
        """A whole number from 1, marked as read; 1 where there is no value. Raises JobFileError for another value."""
        view = self.at(*steps)
        number = view.whole() if view else 1
        if number is None or number < 1:
            raise view.mistyped("a whole number from 1")
        return number

    def expected(self, kind: str) -> None:
        """Keep for the report that a value is of another type."""
        if self:
            self.source.mistyped.setdefault(self.path, f"expected {kind}, found {found(self.value)}")

    def scalar(self) -> str | int | float | None:
        """Text or a number, marked as read."""
        is_one = isinstance(self.value, str | int | float) and not isinstance(self.value, bool)
        one: str | int | float | None = self.take() if is_one else None
        return one

    def texts(self, *steps: str | int) -> list[str]:
        """A list of texts, marked as read, with numbers as text; empty if there is none.

        Raises JobFileError for another value: a command without some of its words is another one.
        """
        view = self.at(*steps)
        if view and not isinstance(view.value, list):
            raise view.mistyped("a list of texts")
        for entry in view.each():
            if entry.scalar() is None:
                raise entry.mistyped("text")
        return [str(entry.value) for entry in view.each()]

    def take(self) -> Any:
        """The whole value, marked as read."""
        self.source.taken.add(self.path)
        return self.value

    def take_if(self, usual: Any) -> bool:
        """Mark the value as read if it equals `usual`; returns whether it does."""
        is_usual = self.value == usual and type(self.value) is type(usual)
        if is_usual:
            self.take()
        return is_usual

    def leave(self, meaning: str, instead: str, is_ours: bool = False) -> None:
        """Report the value, if there is one, as without equivalent; the first report of a path is kept."""
        if self:
            self.source.reported.setdefault(self.path, self.source.left(self.path, meaning, instead, is_ours))

    def remark(self, meaning: str, instead: str, is_ours: bool = False) -> None:
        """Report something about the path, whether there is a value or not."""
        self.source.remarks.append(self.source.left(self.path, meaning, instead, is_ours))

    def refused(self, message: str, hint: str = "") -> JobFileError:
        """The error to raise where a file cannot be imported, at the line of the value."""
        line = self.source.line(self.path)
        return JobFileError([Problem(f"{self.source.where}:{line}", self.source.spelled(self.path), message, hint)])

    def mistyped(self, kind: str) -> JobFileError:
        """The error to raise where a value of another type would change the job: `a whole number`, `text`."""
        return self.refused(f"expected {kind}, found {found(self.value)}")


def argument(where: str) -> str:
    """The file of this name as an argument of a command."""
    return "-" if where == STDIN else shlex.quote(where)


def is_empty(value: Any) -> bool:
    """Whether a value is `null`, `{}` or `[]`, or holds only such, and none that says something by its name alone."""
    if isinstance(value, dict):
        return GANGS.isdisjoint(value) and all(map(is_empty, value.values()))
    return all(map(is_empty, value)) if isinstance(value, list) else value is None
