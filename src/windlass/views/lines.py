"""Events and log lines of a run, one JSON object each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventView:
    """One event; the fields of its kind are beside these, see docs/concepts/record.md."""

    seq: int
    """1, 2, 3 … within the run."""
    time: float
    """Unix seconds."""
    kind: str


@dataclass(frozen=True, slots=True)
class LogLineView:
    """A line of a rank."""

    time: float
    """When it arrived, in Unix seconds."""
    attempt: int
    """From 1."""
    rank: int
    text: str
    """Without its newline."""
