"""Time accounting: determines from the events what each interval of a run was spent on.

The phases of the record give the intervals. Other events relabel parts of them: a hang, repeated steps, a training
thread that waited for a checkpoint.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from windlass.runs import events
from windlass.runs.attempt_time import AttemptTime, Interval, micros
from windlass.runs.events import Event
from windlass.runs.phase import Phase
from windlass.runs.record import Status, advance, created
from windlass.runs.start import Origin, Start, start_of


class Spent(enum.StrEnum):
    """Purposes of time, in the order in which a run passes through them."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    PULLING = "pulling"
    STAGING = "staging"
    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    REDONE = "redone"
    RESTARTING = "restarting"
    HUNG = "hung"
    IDLE = "idle"
    UNOBSERVED = "unobserved"
    STOPPING = "stopping"
    UPLOADING = "uploading"


_WORKING: Final = frozenset({Phase.STARTING, Phase.TRAINING, Phase.CHECKPOINTING})
_CHANGES_PHASE: Final = (
    events.PhaseEntered,
    events.AttemptStarted,
    events.AttemptEnded,
    events.StopRequested,
    events.RunEnding,
    events.RunEnded,
    events.RunResumed,
)
"""Events that can change the phase. Such events are few even in runs with many ranks."""

_SIGNS: Final = (
    events.Progress,
    events.CheckpointChanged,
    events.CaughtUp,
    events.FirstStep,
    events.LossNotFinite,
    events.RankChanged,
    events.PhaseEntered,
    events.HangEnded,
    events.NodeObserved,
)
"""Events from or about nodes, with the nodes' times, which prove that the attempt was alive."""

_AFTERWORDS: Final = (
    events.RootCause,
    events.Warned,
    events.ConditionChanged,
    events.SupervisorRestarted,
    events.RankChanged,
    events.ShutdownBegun,
)
"""Events that a later supervisor may record long after the ranks died, so that they are not signs of life."""

_NOT_HELD: Final = frozenset({"gone", "unobserved"})
"""Layers of time during which no node is known to be allocated."""
_OF_LAYER: Final = {
    "unobserved": Spent.UNOBSERVED,
    "restarting": Spent.RESTARTING,
    "stopping": Spent.STOPPING,
    "stuck": Spent.HUNG,
    "hung": Spent.HUNG,
    "redone": Spent.REDONE,
    "blocked": Spent.CHECKPOINTING,
}
"""Purpose of time in a working phase, by the layers over it; the first match counts."""
_OF_TRAINING: Final = frozenset({"hung", "redone", "blocked"})
"""Layers that do not apply before the first step: a slow start that succeeds is not a hang."""


class Tally:
    """Accumulates the events of a run, and computes its ledger at any time."""

    def __init__(self, history: Iterable[Event]) -> None:
        remaining = iter(history)
        first = next(remaining, None)
        if first is None:
            raise ValueError("a run without events has no ledger")
        self.status: Status = created(first)
        self.turns: list[tuple[int, Phase]] = [(micros(first.time), self.status.phase)]
        """When the run entered each phase, in order."""
        self.attempts: list[AttemptTime] = []
        self.dead: list[Interval] = []
        """Intervals between attempts during which no process of the run was alive."""
        self.seen_at = self.turns[0][0]
        self.last_seq = first.seq
        self.take(remaining)

    def take(self, history: Iterable[Event]) -> None:
        """Adds events in order; events added before are ignored."""
        for event in history:
            if event.seq > self.last_seq:
                self.last_seq = event.seq
                self._take(event)

    def known_attempts(self) -> list[AttemptTime]:
        """Returns the attempts so far, each with the highest step before it and where it continued."""
        highest, epoch, has_trained = 0, None, False
        # Steps counted per epoch do not show which steps are repeated.
        counts = all(attempt.steps.rise for attempt in self.attempts)
        for attempt in self.attempts:
            steps, first = attempt.steps, self.attempts[0].steps
            steps.highest_before = highest
            steps.start = Start(Origin.BEGINNING, 0)
            if has_trained or steps.reports.restored is not None:
                steps.start = start_of(steps.reports, first.reports, highest, epoch, counts=counts)
            has_trained = has_trained or attempt.trained_at is not None
            highest = max(highest, steps.saved, steps.reached if counts else 0)
            epoch = max((one for one in (epoch, steps.highest_epoch) if one is not None), default=None)
        return self.attempts

    @property
    def attempt(self) -> AttemptTime | None:
        """The current attempt."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].ended is None else None

    # -- one event ----------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        over, entry, at = self.status.phase.is_terminal, event.entry, micros(event.time)
        if isinstance(entry, _CHANGES_PHASE):
            self._follow_phase(event)
        if over and not isinstance(entry, events.RunResumed):
            return
        self._take_entry(entry, at)
        if isinstance(entry, _SIGNS) and self.attempt is not None:
            self.attempt.observe(at)
        if not isinstance(entry, _AFTERWORDS):
            self.seen_at = max(self.seen_at, at)

    def _follow_phase(self, event: Event) -> None:
        """Updates the status, and adds a turn if the phase has changed."""
        before = self.status
        self.status = advance(before, event)
        if self.status.phase is before.phase:
            return
        at = max(micros(self.status.times.phase_since), self.turns[-1][0])
        self.turns.append((at, self.status.phase))
        attempt = self.attempt
        if attempt is not None and attempt.trained_at is None and self.status.phase is Phase.TRAINING:
            attempt.trained_at = at

    def _take_entry(self, entry: events.Entry, at: int) -> None:
        attempt = self.attempt
        match entry:
            case events.AttemptStarted():
                if attempt is not None:
                    attempt.close(at, another_follows=True)
                self.attempts.append(AttemptTime(max(at, self.turns[-1][0]), entry))
            case events.SupervisorRestarted():
                self._take_adopted(entry, at)
            case events.NodeBack():
                self._take_node_back(at)
            case events.AttemptEnded() | events.RunEnding() | events.RunEnded():
                if attempt is not None:
                    attempt.take_end(entry, at, self.seen_at if self.status.phase is Phase.LOST else None)
            case _ if attempt is not None:
                attempt.take(entry, at)

    def _take_adopted(self, entry: events.SupervisorRestarted, at: int) -> None:
        """Accounts for the time without a supervisor since the last event. Ranks may have continued, but no attempt
        started.

        On other machines, ranks may have ended meanwhile. The event then has the time until which ranks were observed;
        later time counts only as far as the logs reach.
        """
        if self.attempt is None:
            self.dead.append((self.seen_at, at))
        elif entry.observed_until is not None:
            begin = max(micros(entry.observed_until), self.seen_at, self.attempt.began)
            if begin < at:
                self.attempt.gaps.append((begin, at))

    def _take_node_back(self, at: int) -> None:
        """Ends the wait of a run that had too few nodes after its back-off, until this node returned."""
        before = self.attempts[-1] if self.attempts else None
        if before is not None and before.ended is not None:
            self.dead.append((before.ended + max(0, micros(before.end.wait_seconds or 0.0)), at))

    # -- intervals ----------------------------------------------------------------------------------------------------

    def pieces(self, now: float) -> Iterator[tuple[int, int, Spent, int]]:
        """Yields begin, end, purpose and number of allocated nodes of consecutive intervals without gaps."""
        last_turn, last_phase = self.turns[-1]
        until = last_turn if last_phase.is_terminal else max(micros(now), last_turn)
        changes = self._changes(until)
        begins = [attempt.began for attempt in self.attempts]
        turns = [at for at, _ in self.turns]
        over: Counter[str] = Counter()
        for left, right in itertools.pairwise(sorted(at for at in {*changes, *begins, *turns, until} if at <= until)):
            over.update(changes.get(left, {}))
            layers = {name for name, count in over.items() if count}
            phase = self.turns[bisect_right(turns, left) - 1][1]
            is_held = not (phase.is_terminal or phase is Phase.QUEUED or layers & _NOT_HELD)
            held = self._num_nodes(bisect_right(begins, left)) if is_held else 0
            yield left, right, _spent(phase, layers), held

    def _changes(self, until: int) -> dict[int, Counter[str]]:
        """Returns, by time, how many layers of each name begin, minus the number that end."""
        laid = [("dead", interval) for interval in self.dead]
        for attempt in self.known_attempts():
            end = until if attempt.ended is None else attempt.ended
            laid += [(name, (max(begin, attempt.began), min(to, end))) for name, (begin, to) in attempt.layers(end)]
        changes: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for name, (begin, to) in laid:
            if begin < to:
                changes[begin][name] += 1
                changes[to][name] -= 1
        return changes

    def _num_nodes(self, attempt_number: int) -> int:
        """Returns the number of nodes of an attempt. For attempt 0, which is the time before the
        first attempt, returns the number of the first attempt.
        """
        return len(self.attempts[max(1, attempt_number) - 1].entry.nodes) or 1 if self.attempts else 1


def _spent(phase: Phase, over: set[str]) -> Spent:
    """Returns the purpose of an interval in `phase` of the record, with these layers over it."""
    if phase.is_terminal or over & {"dead", "gone"}:
        return Spent.IDLE
    if phase in _WORKING:
        known = over - _OF_TRAINING if phase is Phase.STARTING else over
        for layer, spent in _OF_LAYER.items():
            if layer in known:
                return spent
    return Spent(phase.value)
