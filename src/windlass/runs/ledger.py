"""Ledger of a run: attributes every second from its start to its end (or to now) to exactly one purpose.

The phases of the record show the state of a run; the ledger shows how useful its time was. `time_accounting` reads the
events, and this module sums up.
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
"""Kinds of time that a run spends only because of failures."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """How the time of a run was spent."""

    seconds: Mapping[Spent, float]
    """Purpose → seconds; the values sum to `wall_seconds`."""
    node_seconds: Mapping[Spent, float]
    """Purpose → seconds times the number of allocated nodes and spares. Queued and ended runs have no nodes."""
    wall_seconds: float
    """Seconds from the start of the run to its end, or to now."""
    attempts: int
    """Number of started attempts."""
    steps_redone: int
    """Number of repeated steps, as far as known; see `unknown_starts`."""
    unknown_starts: int = 0
    """Number of restarts for which the repeated steps are unknown."""
    start: Start | None = None
    """Point from which the newest attempt continued; null for a first attempt."""
    goodput: float = field(default=0.0, init=False)
    """Share of the wall time spent on new training, 0 to 1."""

    def __post_init__(self) -> None:
        share = self.seconds.get(Spent.TRAINING, 0.0) / self.wall_seconds if self.wall_seconds > 0 else 0.0
        object.__setattr__(self, "goodput", round(share, 4))

    @property
    def wasted_seconds(self) -> float:
        """Seconds spent on repeated steps, hung or idle."""
        return sum(self.seconds.get(spent, 0.0) for spent in WASTED)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a run until its end, or until now."""

    per_node_hour: float
    """Price of one node per hour."""
    currency: str
    """ISO 4217 code."""
    source: str
    """Source of the price."""
    spent: Mapping[Spent, float]
    """Cost by purpose; sums to `total`."""
    total: float = field(default=0.0, init=False)
    wasted: float = field(default=0.0, init=False)
    """Cost of repeated steps, hangs and idle time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.spent.values()))
        object.__setattr__(self, "wasted", sum(self.spent.get(spent, 0.0) for spent in WASTED))


@dataclass(frozen=True, slots=True)
class Billed:
    """Billing of a run as reported by its target."""

    node_seconds: float
    """Billed seconds of all nodes together."""
    used_node_seconds: float
    """Seconds for which nodes were used. The target may bill fewer, for example for spot capacity."""
    cost: float | None
    """Cost of the billed seconds by the target's price; null without a price."""


@dataclass(frozen=True, slots=True)
class Restart:
    """An attempt after the first one, and what was lost before it."""

    attempt: int
    """Number of the attempt that was started."""
    reason: str | None
    """Why the previous attempt ended; null if unknown."""
    seconds: float
    """Seconds from the failure to the start of this attempt."""
    wait_seconds: float | None
    """Seconds of back-off, a part of `seconds`."""
    restarts_left: int | None
    """Remaining restarts of the job."""
    reached_step: int | None
    """Highest step of all earlier attempts."""
    restored_step: int | None
    """Step of the checkpoint that the attempt continued from; null if none was restored, or the script restored it."""
    steps_redone: int | None
    """Steps that were trained again; null if unknown."""
    start: Start = Start()  # noqa: RUF009 - frozen
    """Point from which the attempt continued."""


def fold_ledger(history: Iterable[Event], now: float, num_spares: int = 0) -> Ledger:
    """Returns the ledger of a run up to its end, or to `now` (Unix seconds). Raises ValueError without a `created`
    event.

    `num_spares` are added to the nodes for as long as nodes are allocated.
    """
    return ledger_of(Tally(history), now, num_spares)


def ledger_of(tally: Tally, now: float, num_spares: int = 0) -> Ledger:
    """Returns the ledger of the events in a tally, up to the end of the run or to `now` (Unix seconds)."""
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
    """Returns the cost of the time in `ledger` at the price of a plan; None without a price."""
    if price is None:
        return None
    per_second = price.per_node_hour / 3600
    spent = {spent: seconds * per_second for spent, seconds in ledger.node_seconds.items()}
    return Cost(price.per_node_hour, price.currency, price.source, spent)


def restarts(history: Iterable[Event]) -> list[Restart]:
    """Returns all attempts of a run except the first. Raises ValueError without a `created` event."""
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
