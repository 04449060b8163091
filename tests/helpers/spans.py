"""The time of a run as a row of stretches, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from windlass.runs.attempt_time import MICRO
from windlass.runs.events import Event
from windlass.runs.time_accounting import Spent, Tally


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a run that was spent on one thing."""

    begin: float
    """Unix seconds."""
    end: float
    spent: Spent
    nodes: int
    """How many nodes were held."""


def spans(history: Iterable[Event], now: float) -> list[Span]:
    """The same time as a row of stretches without gaps, each as long as possible. Raises ValueError."""
    found: list[Span] = []
    for begin, end, spent, nodes in Tally(history).pieces(now):
        last = found[-1] if found else None
        if last is not None and (last.spent, last.nodes) == (spent, nodes):
            found[-1] = Span(last.begin, end / MICRO, spent, nodes)
        else:
            found.append(Span(begin / MICRO, end / MICRO, spent, nodes))
    return found
