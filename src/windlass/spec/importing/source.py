"""A foreign document whose every value is either read by somebody or left behind with words; none is lost silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from windlass.spec.importing.meanings import is_one_thing, meaning_of
from windlass.spec.problems import Path, spell


@dataclass(frozen=True, slots=True)
class Left:
    """One thing that the job file does not say."""

    field: str
    """Where it stands: `spec.template.spec.hostNetwork`; of another document, `Service/web: spec.ports`."""
    line: int
    """Line of the file, from 1; 0 where it is not known."""
    meaning: str
    """What it was for."""
    instead: str
    """What to do about it."""
    is_ours: bool = False
    """Whether there is nothing to do: Windlass does the same by itself, or has no use for it."""


class Source:
    """One document."""

    def __init__(
        self, value: Any, *, base: Path = (), lines: Mapping[Path, int] | None = None, label: str = ""
    ) -> None:
        self.value = value
        self.label = label
        """What stands before the paths of a document that is not the job's own: `Service/web`."""
        self._base = base
        self._lines = lines or {}
        self._taken: set[Path] = set()
        self._left: dict[Path, Left] = {}
        self._more: list[Left] = []

    @property
    def view(self) -> View:
        """The document as a whole."""
        return View(self, (), self.value)

    @property
    def is_read(self) -> bool:
        """Whether anything of it was read, beside what kind of object it is."""
        return any(path not in (("apiVersion",), ("kind",)) for path in self._taken)

    def take(self, path: Path) -> None:
        """Note that everything at this path was read."""
        self._taken.add(path)

    def leave(self, path: Path, meaning: str, instead: str, *, is_ours: bool = False) -> None:
        """Note that everything at this path is left behind; the first words about a path stay."""
        self._left.setdefault(path, self.left(path, meaning, instead, is_ours=is_ours))

    def remark(self, path: Path, meaning: str, instead: str, *, is_ours: bool = False) -> None:
        """Say something of a path that is read, or is not there."""
        self._more.append(self.left(path, meaning, instead, is_ours=is_ours))

    def left(self, path: Path, meaning: str, instead: str, *, is_ours: bool = False) -> Left:
        """The words about a path."""
        return Left(self.spelled(path), self.line(path), meaning, instead, is_ours)

    def spelled(self, path: Path) -> str:
        """The path as a person writes it."""
        return ": ".join(part for part in (self.label, spell(path)) if part)

    def line(self, path: Path) -> int:
        """Where a path, or what holds it, begins."""
        whole = (*self._base, *path)
        for length in range(len(whole), -1, -1):
            if (line := self._lines.get(whole[:length])) is not None:
                return line
        return 0

    def rest(self) -> list[Left]:
        """All that is left behind, in the order of the file: what somebody said so of, and what nobody has read."""
        touched = {path[:length] for path in (*self._taken, *self._left) for length in range(len(path) + 1)}
        found = [*self._more, *self._rest((), self.value, touched)]
        return sorted(dict.fromkeys(found), key=lambda left: left.line)

    def _rest(self, path: Path, value: Any, touched: set[Path]) -> Iterator[Left]:
        if path in self._left:
            yield self._left[path]
        elif path in self._taken or is_empty(value):
            return
        elif isinstance(value, dict | list) and (path in touched or not is_one_thing(path)):
            for step, below in value.items() if isinstance(value, dict) else enumerate(value):
                yield from self._rest((*path, step), below, touched)
        else:
            meaning, instead, is_ours = meaning_of(path)
            yield self.left(path, meaning, instead, is_ours=is_ours)


class View:
    """A part of a document, which may not be there: whoever looks for it finds nothing then."""

    def __init__(self, source: Source, path: Path, value: Any) -> None:
        self.source = source
        self.path = path
        self.value = value

    def __bool__(self) -> bool:
        return self.value is not None

    def at(self, *steps: str | int) -> View:
        """What stands below these steps."""
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
        return [(key, self.at(key)) for key in self.value] if isinstance(self.value, dict) else []

    def each(self) -> list[View]:
        """The entries of a list."""
        return [self.at(place) for place in range(len(self.value))] if isinstance(self.value, list) else []

    # -- values: what has another type than it should is not read, and so it is listed --------------------------------

    def text(self, *steps: str | int) -> str | None:
        """Text that is read now."""
        found: str | None = self._read(steps, lambda value: isinstance(value, str) and value != "")
        return found

    def whole(self, *steps: str | int) -> int | None:
        """A whole number that is read now."""
        found: int | None = self._read(steps, lambda value: isinstance(value, int) and not isinstance(value, bool))
        return found

    def flag(self, *steps: str | int) -> bool | None:
        """A truth value that is read now."""
        found: bool | None = self._read(steps, lambda value: isinstance(value, bool))
        return found

    def scalar(self, *steps: str | int) -> str | int | float | None:
        """Text or a number that is read now."""
        found: str | int | float | None = self._read(steps, is_scalar)
        return found

    def texts(self, *steps: str | int) -> list[str]:
        """A list of texts that is read now, numbers among them as text; empty where there is none."""
        found = self.at(*steps)
        entries = [view.scalar() for view in found.each()]
        return [] if None in entries else [str(entry) for entry in entries]

    def take(self) -> Any:
        """All of it, read now."""
        self.source.take(self.path)
        return self.value

    def leave(self, meaning: str, instead: str, *, is_ours: bool = False) -> None:
        """All of it is left behind."""
        if self:
            self.source.leave(self.path, meaning, instead, is_ours=is_ours)

    def remark(self, meaning: str, instead: str, *, is_ours: bool = False) -> None:
        """Something is to be said of it, whether it is there or not."""
        self.source.remark(self.path, meaning, instead, is_ours=is_ours)

    def _read(self, steps: tuple[str | int, ...], fits: Callable[[Any], bool]) -> Any:
        found = self.at(*steps)
        return found.take() if fits(found.value) else None


def is_scalar(value: Any) -> bool:
    """Whether a value is text or a number."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def is_empty(value: Any) -> bool:
    """Whether a value asks for nothing: `null`, `{}`, `[]`, and what holds only such."""
    if isinstance(value, dict):
        return all(is_empty(below) for below in value.values())
    if isinstance(value, list):
        return all(is_empty(below) for below in value)
    return value is None
