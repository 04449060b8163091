"""Folds the events of a run into the ledger: every second from its beginning to its end (or to now), in one phase each.

The phases of the record say where a run is; the ledger says what its time was good for. `tally` reads the events; here
stand the sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from windlass.runs.record import Event
from windlass.runs.start import Origin, Start
from windlass.runs.tally import MICRO, Spent, Tally

WASTED: Final = (Spent.REDONE, Spent.HUNG, Spent.IDLE)
"""What a run that nothing befalls has none of."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the time of a run went."""

    seconds: Mapping[Spent, float]
    """Seconds of each phase that has any. They sum to `wall_seconds`."""
    node_seconds: Mapping[Spent, float]
    """The same times the number of nodes that were held; a run that is queued or has ended holds none."""
    wall_seconds: float
    """From the beginning of the run to its end, or to now."""
    attempts: int
    """How many attempts were begun."""
    steps_redone: int
    """Steps that were trained a second time, as far as the script tells its steps."""
    unknown_starts: int = 0
    """Attempts after the first of which it is not known how many steps they trained a second time."""
    start: Start | None = None
    """Where the newest attempt went on; None for a first attempt."""

    @property
    def goodput(self) -> float:
        """Share of the wall clock in which the run trained for the first time, 0 to 1."""
        return self.seconds.get(Spent.TRAINING, 0.0) / self.wall_seconds if self.wall_seconds > 0 else 0.0

    @property
    def wasted_seconds(self) -> float:
        """Seconds redone, hung or idle."""
        return sum(self.seconds.get(spent, 0.0) for spent in WASTED)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a run that was spent on one thing."""

    begin: float
    """Unix seconds."""
    end: float
    spent: Spent
    nodes: int
    """How many nodes were held."""


@dataclass(frozen=True, slots=True)
class Restart:
    """One attempt that followed another, and what was between them."""

    attempt: int
    """The number of the attempt that was begun."""
    reason: str | None
    """Why the one before ended; None in records from before there were reasons."""
    seconds: float
    """From its failure to this attempt's start."""
    wait_seconds: float | None
    """How much of that was back-off."""
    restarts_left: int | None
    """What was left of the job's restarts."""
    reached_step: int | None
    """The highest step of any attempt before it."""
    restored_step: int | None
    """The step of the checkpoint from which it went on; None where none was restored, or the script did so itself."""
    steps_redone: int | None
    """None where it is not known."""
    start: Start = Start()  # noqa: RUF009 - frozen
    """Where it went on."""

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {**asdict(self), "start": self.start.to_json()}


def fold_ledger(events: Iterable[Event], now: float) -> Ledger:
    """The ledger of a run up to its end, or to `now` (Unix seconds). Raises ValueError without a `created` event."""
    return ledger_of(Tally(events), now)


def ledger_of(tally: Tally, now: float) -> Ledger:
    """The ledger of the events that a tally has taken, up to the end of the run or to `now` (Unix seconds)."""
    micros = dict.fromkeys(Spent, 0)
    node_micros = dict.fromkeys(Spent, 0)
    for begin, end, spent, nodes in tally.pieces(now):
        micros[spent] += end - begin
        node_micros[spent] += (end - begin) * nodes
    attempts = tally.known_attempts()
    redone = [attempt.steps_redone for attempt in attempts[1:]]
    return Ledger(
        seconds={spent: value / MICRO for spent, value in micros.items() if value},
        node_seconds={spent: value / MICRO for spent, value in node_micros.items() if value},
        wall_seconds=sum(micros.values()) / MICRO,
        attempts=len(attempts),
        steps_redone=sum(steps or 0 for steps in redone),
        unknown_starts=redone.count(None),
        start=attempts[-1].start if len(attempts) > 1 else None,
    )


def spans(events: Iterable[Event], now: float) -> list[Span]:
    """The same time as a row of stretches without gaps, each as long as it goes. Raises ValueError."""
    found: list[Span] = []
    for begin, end, spent, nodes in Tally(events).pieces(now):
        last = found[-1] if found else None
        if last is not None and (last.spent, last.nodes) == (spent, nodes):
            found[-1] = Span(last.begin, end / MICRO, spent, nodes)
        else:
            found.append(Span(begin / MICRO, end / MICRO, spent, nodes))
    return found


def restarts(events: Iterable[Event]) -> list[Restart]:
    """Every attempt of a run but its first. Raises ValueError without a `created` event."""
    attempts = Tally(events).known_attempts()
    return [
        Restart(
            attempt=number,
            reason="resume" if attempt.data.get("reason") == "resume" else before.end.get("reason"),
            seconds=max(0, attempt.began - (before.died_at or before.failed_at or before.ended or 0)) / MICRO,
            wait_seconds=before.end.get("wait_seconds"),
            restarts_left=before.end.get("restarts_left"),
            reached_step=attempt.highest_before or None,
            restored_step=_restored_step(attempt.start),
            steps_redone=attempt.steps_redone,
            start=attempt.start,
        )
        for number, (before, attempt) in enumerate(itertools.pairwise(attempts), 2)
    ]


def _restored_step(start: Start) -> int | None:
    return start.step if start.origin is Origin.CHECKPOINT else None


def ledger_to_json(ledger: Ledger) -> dict[str, Any]:
    """The public form of a ledger, as `status -o json` prints it."""
    return {
        "seconds": {spent.value: seconds for spent, seconds in ledger.seconds.items()},
        "wall_seconds": ledger.wall_seconds,
        "goodput": round(ledger.goodput, 4),
        "attempts": ledger.attempts,
        "steps_redone": ledger.steps_redone,
        "unknown_starts": ledger.unknown_starts,
        "start": None if ledger.start is None else ledger.start.to_json(),
    }
