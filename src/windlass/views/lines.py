"""Events and log lines of a run, one JSON object each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventView:
    """An event of a run. Fields specific to the kind of event are on the same level, see docs/concepts/record.md."""

    seq: int
    """Number of the event within the run, starting at 1."""
    time: float
    """Time of the event in Unix seconds."""
    kind: str


@dataclass(frozen=True, slots=True)
class LogLineView:
    """A line of output from a rank."""

    time: float
    """Arrival time in Unix seconds."""
    attempt: int
    """Number of the attempt, starting at 1."""
    rank: int
    text: str
    """Text of the line without its newline."""
