"""Maps each value of a document to its line and position, for messages; imports no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from windlass.errors import JobFileError, Problem
from windlass.spec.secret_text import has_secret

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the document: `("data", 0, "via")`."""


@dataclass(frozen=True)
class Positions:
    """The line and rank of each value of one document, and the problems found while the document was read."""

    where: str
    """Name of the file or object."""
    marks: Mapping[Path, tuple[int, int]]
    """Line and rank of each value. Lines count from 1, and are 0 for an object that was not read from a file. The rank
    is the position in document order."""
    below: Path = ()
    """Path in the document of the value that is being checked."""
    refused: frozenset[Path] = frozenset()
    """Paths of values that the reader refused and omitted; errors about these values are not reported again."""
    problems: tuple[tuple[int, Problem], ...] = ()
    """Problems that the reader found, each with its rank."""

    @classmethod
    def of(cls, given: object, where: str) -> Positions:
        """Returns the positions of an object that was not read from a file: without lines, ranked by the order of
        keys.
        """
        marks: dict[Path, tuple[int, int]] = {}

        def walk(value: object, path: Path) -> None:
            marks[path] = (0, len(marks))
            if isinstance(value, Mapping) and len(path) < 8:
                for key, below in value.items():
                    walk(below, (*path, str(key)))
            elif isinstance(value, list | tuple) and len(path) < 8:
                for at, below in enumerate(value):
                    walk(below, (*path, at))

        walk(given, ())
        return cls(where, marks)

    def at(self, path: Path) -> str:
        """Returns the location of a value: `job.yaml:4`, or only the name of the document if lines are unknown."""
        line, _ = self._mark(path)
        return f"{self.where}:{line}" if line else self.where

    def rank(self, path: Path) -> int:
        """Returns the sort key of a value in document order; a missing field sorts where its section begins."""
        return self._mark(path)[1]

    def _mark(self, path: Path) -> tuple[int, int]:
        """Returns the line and rank of the value, or of the nearest enclosing value."""
        return next((self.marks[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.marks), (0, 0))


def in_order(ranked: Iterable[tuple[int, Problem]]) -> JobFileError:
    """Returns one error with all problems in document order, without duplicates."""
    return JobFileError(list(dict.fromkeys(problem for _, problem in sorted(ranked, key=lambda item: item[0]))))


def found(value: object) -> str:
    """Formats a value for a message, as in YAML, or by its kind: `'two'`, `true`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and has_secret(value):
        return "text that looks like a secret"
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:40]!r}… ({len(value)} characters)"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "a very large number"
    if isinstance(value, float):
        return str(value)
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def spell(path: Path) -> str:
    """Formats `("data", 0, "via")` as `data[0].via`; keys with control characters are escaped."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            step = step if len(step) <= 60 else f"{step[:40]}…"
            step = step if step and step.isprintable() else repr(step)
            text += f".{step}" if text else step
    return text
