"""Filters a list of runs by name, phase, label and age."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from windlass.errors import UsageError
from windlass.runs.phase import Phase
from windlass.runs.record import Status


@dataclass(frozen=True, slots=True)
class Filter:
    """Filters for runs; an empty filter matches every run."""

    name: str = ""
    """Job name or pattern: `digits*`."""
    phases: frozenset[Phase] = frozenset()
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """Required labels by key; the value None matches any value."""
    target: str = ""
    since: float = 0.0
    """Earliest creation time in Unix seconds."""

    def __bool__(self) -> bool:
        return self != Filter()

    def matches(self, status: Status) -> bool:
        """Whether a run matches every filter."""
        return (
            (not self.name or fnmatchcase(status.name, self.name))
            and (not self.phases or status.phase in self.phases)
            and all(
                key in status.about.labels and value in (None, status.about.labels[key])
                for key, value in self.labels.items()
            )
            and self.target in ("", status.target)
            and status.times.created_at >= self.since
        )


def labels_in(given: tuple[str, ...]) -> dict[str, str | None]:
    """Parses `team=vision` and `team` into a label filter. Raises UsageError."""
    found: dict[str, str | None] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not key:
            raise UsageError(f"--label {text}: no label is named", "write it as --label team=vision or --label team")
        found[key] = value if sign else None
    return found
