"""Ledger of a run: every second from its beginning to its end (or to now) is spent on exactly one thing.

The phases of the record show where a run is; the ledger shows what its time was good for. `time_accounting` reads the
events; this module adds up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from windlass.runs.attempt_time import MICRO
from windlass.runs.events import Event
from windlass.runs.start import Origin, Start
from windlass.runs.time_accounting import Spent, Tally

if TYPE_CHECKING:
    from windlass.plan.price import Price

WASTED: Final = (Spent.REDONE, Spent.HUNG, Spent.IDLE)
"""What a run without failures spends no time on."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the time of a run went."""

    seconds: Mapping[Spent, float]
    """Seconds spent on each thing that took any; they sum to `wall_seconds`."""
    node_seconds: Mapping[Spent, float]
    """The same times the number of nodes and spares that were held; a run that is queued or has ended holds none."""
    wall_seconds: float
    """From the beginning of the run to its end, or to now."""
    attempts: int
    """How many attempts were started."""
    steps_redone: int
    """Steps that were trained a second time, as far as it is known; see `unknown_starts`."""
    unknown_starts: int = 0
    """Restarts of which it is not known how many steps were redone."""
    start: Start | None = None
    """Where the newest attempt continued; null for a first attempt."""
    goodput: float = field(default=0.0, init=False)
    """Share of the wall clock in which the run trained for the first time, 0 to 1."""

    def __post_init__(self) -> None:
        share = self.seconds.get(Spent.TRAINING, 0.0) / self.wall_seconds if self.wall_seconds > 0 else 0.0
        object.__setattr__(self, "goodput", round(share, 4))

    @property
    def wasted_seconds(self) -> float:
        """Seconds redone, hung or idle."""
        return sum(self.seconds.get(spent, 0.0) for spent in WASTED)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run has cost until its end, or until now."""

    per_node_hour: float
    """Price of one node for one hour."""
    currency: str
    """ISO 4217 code."""
    source: str
    """Where the price is from."""
    spent: Mapping[Spent, float]
    """Money by what the time of the nodes was spent on; it sums to `total`."""
    total: float = field(default=0.0, init=False)
    wasted: float = field(default=0.0, init=False)
    """Cost of the time that was redone, hung or idle."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.spent.values()))
        object.__setattr__(self, "wasted", sum(self.spent.get(spent, 0.0) for spent in WASTED))


@dataclass(frozen=True, slots=True)
class Billed:
    """What a target itself reports to bill for a run, as far as it has."""

    node_seconds: float
    """Of all nodes together."""
    used_node_seconds: float
    """How long nodes were used; more than is billed where spot capacity is cheaper."""
    cost: float | None
    """Of the billed seconds, by the target's price; null without one."""


@dataclass(frozen=True, slots=True)
class Restart:
    """One attempt that followed another, and what was lost between them."""

    attempt: int
    """The number of the attempt that was started."""
    reason: str | None
    """Why the one before ended; null where that is not known."""
    seconds: float
    """From the failure to this attempt's start."""
    wait_seconds: float | None
    """How much of that was back-off."""
    restarts_left: int | None
    """What was left of the job's restarts."""
    reached_step: int | None
    """The highest step of any attempt before it."""
    restored_step: int | None
    """The step of the checkpoint that it continued from; null where none was restored, or the script restored it."""
    steps_redone: int | None
    """Null where it is not known."""
    start: Start = Start()  # noqa: RUF009 - frozen
    """Where it continued."""


def fold_ledger(history: Iterable[Event], now: float, num_spares: int = 0) -> Ledger:
    """The ledger of a run up to its end, or to `now` (Unix seconds). Raises ValueError without a `created` event.

    So many spares are counted as nodes, for as long as nodes are held.
    """
    return ledger_of(Tally(history), now, num_spares)


def ledger_of(tally: Tally, now: float, num_spares: int = 0) -> Ledger:
    """The ledger of the events that a tally has taken, up to the end of the run or to `now` (Unix seconds)."""
    micros = dict.fromkeys(Spent, 0)
    node_micros = dict.fromkeys(Spent, 0)
    for begin, end, spent, nodes in tally.pieces(now):
        micros[spent] += end - begin
        node_micros[spent] += (end - begin) * (nodes + num_spares if nodes else 0)
    attempts = tally.known_attempts()
    redone = [attempt.steps.redone for attempt in attempts[1:]]
    return Ledger(
        seconds={spent: value / MICRO for spent, value in micros.items() if value},
        node_seconds={spent: value / MICRO for spent, value in node_micros.items() if value},
        wall_seconds=sum(micros.values()) / MICRO,
        attempts=len(attempts),
        steps_redone=sum(steps or 0 for steps in redone),
        unknown_starts=redone.count(None),
        start=attempts[-1].steps.start if len(attempts) > 1 else None,
    )


def cost_of(ledger: Ledger, price: Price | None) -> Cost | None:
    """What the time of `ledger` cost at `price`, the price of a plan; None without one."""
    if price is None:
        return None
    per_second = price.per_node_hour / 3600
    spent = {spent: seconds * per_second for spent, seconds in ledger.node_seconds.items()}
    return Cost(price.per_node_hour, price.currency, price.source, spent)


def restarts(history: Iterable[Event]) -> list[Restart]:
    """Every attempt of a run but its first. Raises ValueError without a `created` event."""
    attempts = Tally(history).known_attempts()
    return [
        Restart(
            attempt=number,
            reason="resume" if attempt.entry.reason == "resume" else before.end.reason,
            seconds=max(0, attempt.began - (before.died_at or before.failed_at or before.ended or 0)) / MICRO,
            wait_seconds=before.end.wait_seconds,
            restarts_left=before.end.restarts_left,
            reached_step=attempt.steps.reached_before,
            restored_step=attempt.steps.start.step if attempt.steps.start.origin is Origin.CHECKPOINT else None,
            steps_redone=attempt.steps.redone,
            start=attempt.steps.start,
        )
        for number, (before, attempt) in enumerate(itertools.pairwise(attempts), 2)
    ]
