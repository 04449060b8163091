"""Time accounting: which stretch of a run was spent on what, from its events.

It starts from the phases of the record, so that both cover the same wall clock, and then relabels parts of them by what
other events show: a hang, steps that were trained a second time, a training thread that waited for a checkpoint.
"""

from __future__ import annotations

import enum
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from windlass.runs import events
from windlass.runs.events import Event
from windlass.runs.phase import Phase
from windlass.runs.record import Status, advance, created
from windlass.runs.start import Origin, Reports, Start, start_of

MICRO: Final = 1_000_000
"""Times are added up as whole microseconds: sums of floats would not be exact."""


class Spent(enum.StrEnum):
    """What time was spent on, in the order in which a run passes through them."""

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


_OF_PHASE: Final = {phase: Spent(phase.value) for phase in Phase if phase.value in set(Spent)}
_WORKING: Final = frozenset({Phase.STARTING, Phase.TRAINING, Phase.CHECKPOINTING})
_CHANGES_PHASE: Final = (
    events.PhaseEntered, events.AttemptStarted, events.AttemptEnded, events.StopRequested, events.RunEnding,
    events.RunEnded, events.RunResumed,
)  # fmt: skip
"""Events that can change the record's phase; there are few of them, however many ranks a run has."""
_TRUE_HANGS: Final = frozenset({"silence", "failure"})
"""Reasons for which stacks are taken of a hang; they are also taken of a quiet run before it is stopped."""

_SIGNS: Final = (
    events.Progress, events.CheckpointChanged, events.CaughtUp, events.FirstStep, events.LossNotFinite,
    events.RankChanged, events.PhaseEntered, events.HangEnded, events.NodeObserved,
)  # fmt: skip
"""What nodes reported, with their own times, or was observed of them: their attempt was alive then."""

_AFTERWORDS: Final = (
    events.RootCause, events.Warned, events.ConditionChanged, events.SupervisorRestarted, events.RankChanged,
)  # fmt: skip
"""What a later supervisor may record of ranks that had died long before: no sign of life."""

_NOT_HELD: Final = frozenset({"gone", "unobserved"})
"""Layers of time in which no node is known to be held."""

Interval = tuple[int, int]


@dataclass(slots=True)
class _Attempt:
    """What the events of one attempt show about its time. Times are whole microseconds."""

    began: int
    entry: events.AttemptStarted
    end: events.AttemptEnded = field(default_factory=lambda: events.AttemptEnded(None))
    """How it ended, once it has."""
    highest_before: int = 0
    """The highest step that any attempt before it has reached; known once all events are read."""
    trained_at: int | None = None
    ended: int | None = None
    another_follows: bool = False
    failed_at: int | None = None
    """When its first rank failed."""
    died_at: int | None = None
    """The last sign of life of an attempt whose end was not observed."""
    reports: Reports = field(default_factory=Reports)
    start: Start = field(default_factory=Start)
    """Where it continued; known once all events are read."""
    highest_epoch: float | None = None
    caught_up: tuple[int, int] | None = None
    """When, and at which step."""
    has_stepped: bool = False
    """Whether a step of it was recorded."""
    reached: int = 0
    """The highest step that it reported."""
    saved: int = 0
    """The step of its newest checkpoint."""
    gaps: list[list[int]] = field(default_factory=list)
    """From when to when no supervisor observed it, as far as no sign of life is known."""
    rank_ends: dict[int, int] = field(default_factory=dict)
    """When each rank ended, by its number."""
    hangs: list[list[int | None]] = field(default_factory=list)
    """From when and, once it is known, until when."""

    @property
    def is_below(self) -> bool:
        """Whether it began below a step that was reached before, so that its first steps are trained again."""
        if self.highest_before <= 0:
            return False
        if self.start.step is not None:
            return self.start.step < self.highest_before
        if self.start.origin in (Origin.SCRIPT, Origin.BEGINNING):
            return self.start.origin is Origin.BEGINNING
        step = self.reports.step
        if step is None:  # it ended without a step
            return self.caught_up is not None or self.ended is not None
        return self.caught_up is not None or step <= self.highest_before

    @property
    def steps_redone(self) -> int | None:
        """Steps trained again; None where that is not known."""
        if self.start.step is None:
            return None
        if not self.is_below:
            return 0
        reached = max(self.saved, self.reached, self.caught_up[1] if self.caught_up else 0)
        reached = min(self.highest_before, reached)
        return max(0, reached - self.start.step)

    @property
    def gone_at(self) -> int | None:
        """When the last of its ranks ended, or was last seen alive; None while any may live."""
        if self.died_at is not None:
            return self.died_at
        is_over = len(self.rank_ends) >= self.entry.world_size > 0
        return max(self.rank_ends.values()) if is_over else None

    def observe(self, at: int) -> None:
        """A sign of life: it lived until then, and through every gap that ended before."""
        self.gaps = [[max(begin, at), end] for begin, end in self.gaps if at < end]

    def layers(self, end: int) -> Iterator[tuple[str, Interval]]:
        """Labels of stretches of its time, which ends at `end`."""
        gone_at = self.gone_at
        for begin, taken_up in self.gaps:
            if gone_at is not None and gone_at <= taken_up:
                # It succeeded: the supervisor recorded its end a moment after it took over the run.
                yield "gone", (max(begin, gone_at), taken_up if self.failed_at is not None else end)
                taken_up = gone_at
            yield "unobserved", (begin, taken_up)
        if self.died_at is not None:
            yield "dead", (self.died_at, end)
        if self.failed_at is not None:
            yield ("restarting" if self.another_follows else "stopping"), (self.failed_at, end)
        for since, until in self.hangs:
            yield ("stuck", (since or 0, end)) if until is None else ("hung", (since or 0, until))
        if self.is_below and self.trained_at is not None:
            yield "redone", (self.trained_at, end if self.caught_up is None else self.caught_up[0])


class Tally:
    """Takes the events of a run one by one; its ledger can be made at any moment."""

    def __init__(self, history: Iterable[Event]) -> None:
        remaining = iter(history)
        first = next(remaining, None)
        if first is None:
            raise ValueError("a run without events has no ledger")
        self.status: Status = created(first)
        self.turns: list[tuple[int, Phase]] = [(_micros(first.time), self.status.phase)]
        """When the run entered each phase, in order."""
        self.attempts: list[_Attempt] = []
        self.seen_at = self.turns[0][0]
        self.last_seq = first.seq
        self.layers: dict[str, list[Interval]] = {}
        self.step_is_global = True
        self.last_step: int | None = None
        self.take(remaining)

    def take(self, history: Iterable[Event]) -> None:
        """Take more events, in their order; known ones change nothing."""
        for event in history:
            if event.seq > self.last_seq:
                self.last_seq = event.seq
                self._take(event)

    def known_attempts(self) -> list[_Attempt]:
        """The attempts so far, each with what those before it reached, and where it continued."""
        highest, epoch, has_trained = 0, None, False
        for attempt in self.attempts:
            attempt.highest_before = highest
            attempt.start = Start(Origin.BEGINNING, 0)
            if has_trained:
                first = self.attempts[0].reports
                attempt.start = start_of(attempt.reports, first, highest, epoch, counts=self.step_is_global)
            has_trained = has_trained or attempt.trained_at is not None
            highest = max(highest, attempt.saved, attempt.reached if self.step_is_global else 0)
            epoch = max((one for one in (epoch, attempt.highest_epoch) if one is not None), default=None)
        return self.attempts

    @property
    def attempt(self) -> _Attempt | None:
        """The current attempt."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].ended is None else None

    # -- one event ----------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        over, entry, at = self.status.phase.is_terminal, event.entry, _micros(event.time)
        if isinstance(entry, _CHANGES_PHASE):
            self._follow_phase(event)
        if over and not isinstance(entry, events.RunResumed):
            return  # events after the end do not change it
        self._take_entry(entry, at)
        if isinstance(entry, _SIGNS) and self.attempt is not None and self.attempt.gaps:
            self.attempt.observe(at)
        if not isinstance(entry, _AFTERWORDS):
            self.seen_at = max(self.seen_at, at)

    def _follow_phase(self, event: Event) -> None:
        """The record decides whether this is another phase, and since when."""
        before = self.status
        self.status = advance(before, event)
        if self.status.phase is before.phase:
            return
        at = max(_micros(self.status.phase_since), self.turns[-1][0])
        self.turns.append((at, self.status.phase))
        attempt = self.attempt
        if attempt is not None and attempt.trained_at is None and self.status.phase is Phase.TRAINING:
            attempt.trained_at = at

    def _take_entry(self, entry: events.Entry, at: int) -> None:
        attempt = self.attempt
        match entry:
            case events.AttemptStarted():
                self._close(at, another_follows=True)
                self.attempts.append(_Attempt(max(at, self.turns[-1][0]), entry))
            case events.SupervisorRestarted():
                self._take_adopted(entry, at)
            case events.NodeBack():
                self._take_node_back(at)
            case _ if attempt is not None:
                self._take_of_attempt(attempt, entry, at)

    def _take_of_attempt(self, attempt: _Attempt, entry: events.Entry, at: int) -> None:
        match entry:
            case events.AttemptEnded() | events.RunEnding() | events.RunEnded():
                self._take_end(attempt, entry, at)
            case events.RankChanged(rank=rank, exit_code=int(code)):
                attempt.rank_ends[rank] = at
                if code and attempt.failed_at is None:
                    attempt.failed_at = at
            case events.Progress():
                self._take_progress(attempt, entry, at)
            case events.FirstStep(step=int(step)):
                # The first step in the output of a rank may be long before the first one that was recorded.
                attempt.reports.step, attempt.reports.is_exact = step, True
                attempt.reports.every = entry.every if entry.every and entry.every > 0 else None
            case events.CaughtUp(step=step) if attempt.caught_up is None:
                attempt.caught_up = (at, step)
            case events.CheckpointChanged():
                self._take_checkpoint(attempt, entry, at)
            case events.HangDetected() if entry.reason in _TRUE_HANGS:
                since = at - _micros(entry.seconds) if entry.since is None else _micros(entry.since)
                if not any(_is_same(since, hang) for hang in attempt.hangs):
                    attempt.hangs.append([since, None])  # other nodes report the same hang
            case events.HangEnded():
                self._take_hang_end(attempt, entry, at)

    def _take_end(
        self, attempt: _Attempt, entry: events.AttemptEnded | events.RunEnding | events.RunEnded, at: int
    ) -> None:  # fmt: skip
        follows = isinstance(entry, events.AttemptEnded)
        attempt.end = (
            entry if isinstance(entry, events.AttemptEnded) else events.AttemptEnded(entry.phase, entry.reason)
        )
        if entry.died_at is not None:
            attempt.died_at = _micros(entry.died_at)
        elif self.status.phase is Phase.LOST and attempt.died_at is None:
            attempt.died_at = self.seen_at
        attempt.reached = max(attempt.reached, entry.step or 0)
        self._close(at, another_follows=follows)

    def _close(self, at: int, *, another_follows: bool) -> None:
        if (attempt := self.attempt) is not None:
            attempt.ended = max(at, attempt.began)
            attempt.another_follows = another_follows

    def _take_progress(self, attempt: _Attempt, entry: events.Progress, at: int) -> None:
        for hang in attempt.hangs:
            hang[1] = at if hang[1] is None else hang[1]  # records of versions without `hang-end`
        reports, step, epoch = attempt.reports, entry.step, entry.epoch
        if epoch is not None and epoch >= 0:
            reports.epoch = epoch if reports.epoch is None else reports.epoch
            attempt.highest_epoch = max(attempt.highest_epoch or 0, epoch)
        if step is None or step < 0:
            return
        if len(self.attempts) > 1 and not attempt.has_stepped and step == self.last_step:
            return  # older records merge progress: this may be what the attempt before has reported
        if attempt.has_stepped and self.last_step is not None and step < self.last_step:
            self.step_is_global = False  # steps that start again with each epoch do not show what is redone
        attempt.has_stepped = True
        reports.step = step if reports.step is None else reports.step
        attempt.reached = max(attempt.reached, step)
        self.last_step = step

    def _take_checkpoint(self, attempt: _Attempt, entry: events.CheckpointChanged, at: int) -> None:
        reports = attempt.reports
        if entry.action == "restored" and entry.source == "log":
            reports.logged = entry
        elif entry.action == "restored" and (reports.restored is None or entry.step is not None):
            reports.restored = entry
        elif entry.action == "saved" and entry.step is not None:
            attempt.saved = max(attempt.saved, entry.step)
        if entry.blocked_at is not None and entry.blocked_seconds is not None:
            end = _micros(entry.blocked_at + max(0.0, entry.blocked_seconds))
            self._lay("blocked", (_micros(entry.blocked_at), end), attempt.began, at)

    def _take_hang_end(self, attempt: _Attempt, entry: events.HangEnded, at: int) -> None:
        until = at if entry.at is None else _micros(entry.at)
        since = until - _micros(entry.seconds) if entry.since is None else _micros(entry.since)
        begun = [hang for hang in attempt.hangs if (hang[0] or 0) < until]
        if begun and (begun[-1][1] is None or _is_same(since, begun[-1])):
            begun[-1][1] = until
        else:
            attempt.hangs.append([since, until])

    def _take_adopted(self, entry: events.SupervisorRestarted, at: int) -> None:
        """No supervisor ran since the last event. The ranks may have worked on, but no attempt began.

        On other machines they may have ended meanwhile; then the event has the time until which they were observed.
        What follows it is theirs only as far as their logs show it.
        """
        if self.attempt is None:
            self._lay("dead", (self.seen_at, at), self.seen_at, at)
        elif entry.observed_until is not None:
            begin = max(_micros(entry.observed_until), self.seen_at, self.attempt.began)
            if begin < at:
                self.attempt.gaps.append([begin, at])

    def _take_node_back(self, at: int) -> None:
        """A run with too few nodes has waited for this one, once its back-off was over."""
        before = self.attempts[-1] if self.attempts else None
        if before is not None and before.ended is not None:
            self._lay("dead", (before.ended + _micros(before.end.wait_seconds or 0.0), at), before.ended, at)

    def _lay(self, name: str, interval: Interval, least: int, most: int) -> None:
        begin, end = max(interval[0], least), min(interval[1], most)
        if begin < end:
            self.layers.setdefault(name, []).append((begin, end))

    # -- the time -----------------------------------------------------------------------------------------------------

    def pieces(self, now: float) -> Iterator[tuple[int, int, Spent, int]]:
        """Begin, end, purpose and number of nodes held, of stretches that follow one another without a gap."""
        last_turn, last_phase = self.turns[-1]
        until = last_turn if last_phase.is_terminal else max(_micros(now), last_turn)
        laid = {name: list(intervals) for name, intervals in self.layers.items()}
        for attempt in self.known_attempts():
            end = until if attempt.ended is None else attempt.ended
            for name, (begin, finish) in attempt.layers(end):
                laid.setdefault(name, []).append((max(begin, attempt.began), min(finish, end)))
        layers = {name: _merged(intervals) for name, intervals in laid.items()}
        begins = [attempt.began for attempt in self.attempts]
        edges = {edge for intervals in layers.values() for interval in intervals for edge in interval}
        cuts = sorted(edges | set(begins))
        for place, (begin, phase) in enumerate(self.turns):
            end = self.turns[place + 1][0] if place + 1 < len(self.turns) else until
            inner = cuts[bisect_right(cuts, begin) : bisect_right(cuts, end)]
            for left, right in itertools.pairwise([begin, *inner, end]):
                if left == right:
                    continue
                over = {name for name, intervals in layers.items() if _covers(intervals, left)}
                attempt_number = max(1, bisect_right(begins, left))
                is_held = not (phase.is_terminal or phase is Phase.QUEUED or over & _NOT_HELD)
                held = self._nodes(attempt_number) if is_held else 0
                yield left, right, _spent(phase, over), held

    def _nodes(self, attempt_number: int) -> int:
        return len(self.attempts[attempt_number - 1].entry.nodes) or 1 if self.attempts else 1


def _spent(phase: Phase, over: set[str]) -> Spent:
    """What a stretch in `phase` of the record was spent on, with these layers over it."""
    if phase.is_terminal or over & {"dead", "gone"}:
        return Spent.IDLE
    if phase not in _WORKING:
        return _OF_PHASE[phase]
    if "unobserved" in over:
        return Spent.UNOBSERVED
    for layer in ("restarting", "stopping"):
        if layer in over:
            return Spent(layer)
    if "stuck" in over:
        return Spent.HUNG
    if phase is not Phase.STARTING:  # a start without output that then works is no hang
        if "hung" in over:
            return Spent.HUNG
        if "redone" in over:
            return Spent.REDONE
        if "blocked" in over:
            return Spent.CHECKPOINTING
    return _OF_PHASE[phase]


def _is_same(since: int, hang: list[int | None]) -> bool:
    """Whether a hang of an attempt is one that was reported to begin at `since`."""
    return abs(since - (hang[0] or 0)) < MICRO // 100


def _micros(seconds: float) -> int:
    return round(seconds * MICRO) if math.isfinite(seconds) else 0


def _merged(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time without overlaps or empty stretches, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _covers(intervals: Sequence[Interval], moment: int) -> bool:
    place = bisect_right(intervals, moment, key=lambda interval: interval[0])
    return place > 0 and moment < intervals[place - 1][1]
