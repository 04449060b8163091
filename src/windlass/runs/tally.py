"""Reads the events of a run into stretches of time: from when to when, and what each was spent on.

It starts from the record's own phases, so that both always span the same wall clock, and then re-labels parts of them
by what else the events tell: a silence was a hang, steps were trained a second time, the training thread was held for a
checkpoint.
"""

from __future__ import annotations

import enum
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.runs.record import Event, Phase, Status, advance, created
from windlass.runs.start import Origin, Reports, Start, start_of

MICRO: Final = 1_000_000
"""Times are added up as whole microseconds: sums of floats would not come out even."""


class Spent(enum.StrEnum):
    """What time was spent on, in the order in which a run goes through them."""

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


_OF_PHASE: Final = {phase: Spent(phase.value) for phase in Phase if phase.value in set(Spent)}
_WORKING: Final = frozenset({Phase.STARTING, Phase.TRAINING, Phase.CHECKPOINTING})
_TURNING: Final = frozenset({"phase", "attempt", "attempt-end", "stop", "end", "resume"})
"""Kinds of events that can change the record's phase; there are few of them, however many ranks a run has."""
_TRUE_HANGS: Final = frozenset({"silence", "failure"})
"""Why stacks were taken where that tells of a hang; they are also taken of a quiet run that is to end."""

_SIGNS: Final = frozenset({
    "progress", "checkpoint", "caught-up", "first-step", "loss", "rank", "phase", "hang-end", "observed",
})  # fmt: skip
"""What nodes have told, with their own times, or was seen of them: their attempt was alive then."""

_AFTERWORDS: Final = frozenset({"cause", "warning", "condition", "adopted", "rank"})
"""What a later supervisor may write about ranks that had died long before: no sign that anything lived."""

_NOT_HELD: Final = frozenset({"gone", "unobserved"})
"""Layers of time in which no node is known to have been held."""

Interval = tuple[int, int]


@dataclass(slots=True)
class _Attempt:
    """What one attempt tells about its time. Times are whole microseconds."""

    began: int
    nodes: int
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the event that began it carries."""
    end: Mapping[str, Any] = field(default_factory=dict)
    """And the one that ended it."""
    highest_before: int = 0
    """The highest step that any attempt before it has reached; known once all events are read."""
    trained_at: int | None = None
    ended: int | None = None
    another_follows: bool = False
    failed_at: int | None = None
    """When its first rank failed."""
    died_at: int | None = None
    """The last sign of life of an attempt whose end nobody saw."""
    reports: Reports = field(default_factory=Reports)
    start: Start = field(default_factory=Start)
    """Where it went on; known once all events are read."""
    highest_epoch: float | None = None
    caught_up: tuple[int, int] | None = None
    """When, and at which step."""
    has_stepped: bool = False
    """Whether a step of it was recorded."""
    reached: int = 0
    """The highest step that it told."""
    saved: int = 0
    """The step of its newest checkpoint."""
    gaps: list[list[int]] = field(default_factory=list)
    """From when to when no supervisor observed it, as far as no sign of life is known."""
    rank_ends: dict[int, int] = field(default_factory=dict)
    """When each rank ended, by its number."""
    hangs: list[list[int | None]] = field(default_factory=list)
    """Since when and, once it is known, until when."""

    @property
    def is_below(self) -> bool:
        """Whether it began below what was reached before, so that its first steps are trained again."""
        if self.highest_before <= 0:
            return False
        if self.start.step is not None:
            return self.start.step < self.highest_before
        if self.start.origin in (Origin.SCRIPT, Origin.BEGINNING):
            return self.start.origin is Origin.BEGINNING
        step = self.reports.step
        if step is None:  # one that has ended so has brought the run no further
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
        is_over = len(self.rank_ends) >= int(self.data.get("world_size", 0)) > 0
        return max(self.rank_ends.values()) if is_over else None

    def observe(self, at: int) -> None:
        """A sign of life: up to then it lived, and where that is after a gap, all through it."""
        self.gaps = [[max(begin, at), end] for begin, end in self.gaps if at < end]

    def layers(self, end: int) -> Iterator[tuple[str, Interval]]:
        """What its events say of stretches of its time, which ends at `end`."""
        gone_at = self.gone_at
        for begin, taken_up in self.gaps:
            if gone_at is not None and gone_at <= taken_up:
                # It succeeded: the supervisor wrote its end a moment after it took the run up.
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
    """Takes the events of a run one by one; gives its ledger at any moment."""

    def __init__(self, events: Iterable[Event]) -> None:
        remaining = iter(events)
        first = next(remaining, None)
        if first is None:
            raise ValueError("a run without events has no ledger")
        self.status: Status = created(first)
        self.turns: list[tuple[int, Phase]] = [(_micros(first.time), self.status.phase)]
        """When the record went into each phase, in order."""
        self.attempts: list[_Attempt] = []
        self.seen_at = self.turns[0][0]
        self.last_seq = first.seq
        self.layers: dict[str, list[Interval]] = {}
        self.step_is_global = True
        self.last_step: int | None = None
        self.take(remaining)

    def take(self, events: Iterable[Event]) -> None:
        """More events, in their order; those that it knows already change nothing."""
        for event in events:
            if event.seq > self.last_seq:
                self.last_seq = event.seq
                self._take(event)

    def known_attempts(self) -> list[_Attempt]:
        """The attempts so far, each with what those before it have reached, and where it went on."""
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
        """The attempt that goes on."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].ended is None else None

    # -- one event ----------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        over = self.status.phase.is_terminal
        if event.kind in _TURNING:
            self._turn(event)
        if over and event.kind != "resume":
            return  # nothing that comes after the end changes it
        say = getattr(self, f"_on_{event.kind.replace('-', '_')}", None)
        if say is not None:
            say(event, _micros(event.time))
        if event.kind in _SIGNS and self.attempt is not None and self.attempt.gaps:
            self.attempt.observe(_micros(event.time))
        if event.kind not in _AFTERWORDS:
            self.seen_at = max(self.seen_at, _micros(event.time))

    def _turn(self, event: Event) -> None:
        """Let the record decide whether this is another phase, and since when."""
        before = self.status
        self.status = advance(before, event)
        if self.status.phase is before.phase:
            return
        at = max(_micros(self.status.phase_since), self.turns[-1][0])
        self.turns.append((at, self.status.phase))
        attempt = self.attempt
        if attempt is not None and attempt.trained_at is None and self.status.phase is Phase.TRAINING:
            attempt.trained_at = at

    def _on_attempt(self, event: Event, at: int) -> None:
        self._close(at, another_follows=True)
        nodes = len(event.data.get("nodes", ())) or 1
        self.attempts.append(_Attempt(max(at, self.turns[-1][0]), nodes, event.data))

    def _on_attempt_end(self, event: Event, at: int) -> None:
        self._note_end(event)
        self._close(at, another_follows=True)

    def _on_end(self, event: Event, at: int) -> None:
        self._note_end(event)
        if self.status.phase is Phase.LOST and self.attempt is not None and self.attempt.died_at is None:
            self.attempt.died_at = self.seen_at  # nobody knows better
        self._close(at, another_follows=False)

    def _note_end(self, event: Event) -> None:
        """Of an attempt that ends: when it died, where nobody saw it, and how far it had come."""
        died_at, step = event.data.get("died_at"), event.data.get("step")
        if self.attempt is None:
            return
        self.attempt.end = event.data
        if isinstance(died_at, int | float):
            self.attempt.died_at = _micros(died_at)
        if isinstance(step, int):
            self.attempt.reached = max(self.attempt.reached, step)

    def _close(self, at: int, *, another_follows: bool) -> None:
        if (attempt := self.attempt) is not None:
            attempt.ended = max(at, attempt.began)
            attempt.another_follows = another_follows

    def _on_rank(self, event: Event, at: int) -> None:
        attempt = self.attempt
        if attempt is None or not isinstance(event.data.get("exit_code"), int):
            return
        attempt.rank_ends[event.data["rank"]] = at
        if event.data["exit_code"] and attempt.failed_at is None:
            attempt.failed_at = at

    def _on_progress(self, event: Event, at: int) -> None:
        attempt, step = self.attempt, event.data.get("step")
        if attempt is None:
            return
        for hang in attempt.hangs:
            hang[1] = at if hang[1] is None else hang[1]  # records from before `hang-end`
        self._take_epoch(attempt, event.data.get("epoch"))
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            return
        if len(self.attempts) > 1 and not attempt.has_stepped and step == self.last_step:
            return  # progress of older records is merged: this may be what the attempt before has said
        if attempt.has_stepped and self.last_step is not None and step < self.last_step:
            self.step_is_global = False  # a bar that begins anew with each epoch tells nothing of what is redone
        reports, attempt.has_stepped = attempt.reports, True
        reports.step = step if reports.step is None else reports.step
        attempt.reached = max(attempt.reached, step)
        self.last_step = step

    def _take_epoch(self, attempt: _Attempt, epoch: object) -> None:
        if not isinstance(epoch, int | float) or isinstance(epoch, bool) or not math.isfinite(epoch) or epoch < 0:
            return
        reports = attempt.reports
        reports.epoch = epoch if reports.epoch is None else reports.epoch
        attempt.highest_epoch = max(attempt.highest_epoch or 0, epoch)

    def _on_first_step(self, event: Event, at: int) -> None:
        """The first step in the output of a rank, which may be long before the first one that was recorded."""
        attempt, step, every = self.attempt, event.data.get("step"), event.data.get("every")
        if attempt is not None and isinstance(step, int):
            attempt.reports.step, attempt.reports.is_exact = step, True
            attempt.reports.every = every if isinstance(every, int) and every > 0 else None

    def _on_caught_up(self, event: Event, at: int) -> None:
        if self.attempt is not None and self.attempt.caught_up is None:
            self.attempt.caught_up = (at, int(event.data.get("step", 0)))

    def _on_checkpoint(self, event: Event, at: int) -> None:
        attempt, data = self.attempt, event.data
        if attempt is None:
            return
        step = data.get("step")
        if data.get("action") == "restored":
            self._take_restored(attempt.reports, data)
        elif data.get("action") == "saved" and isinstance(step, int):
            attempt.saved = max(attempt.saved, step)
        begin, length = data.get("blocked_at"), data.get("blocked_seconds")
        if isinstance(begin, int | float) and isinstance(length, int | float):
            self._lay("blocked", (_micros(begin), _micros(begin + max(0.0, length))), attempt.began, at)

    def _take_restored(self, reports: Reports, data: Mapping[str, Any]) -> None:
        if data.get("source") == "log":
            reports.logged = {"line": "", **data}
        elif reports.restored is None or isinstance(data.get("step"), int):
            reports.restored = data

    def _on_hang(self, event: Event, at: int) -> None:
        attempt, data = self.attempt, event.data
        if attempt is None or data.get("reason", "silence") not in _TRUE_HANGS:
            return
        since = _micros(data["since"]) if "since" in data else at - _micros(data.get("seconds", 0.0))
        if not any(abs(since - (known[0] or 0)) < MICRO // 100 for known in attempt.hangs):
            attempt.hangs.append([since, None])  # the other nodes tell of the same silence

    def _on_hang_end(self, event: Event, at: int) -> None:
        attempt, data = self.attempt, event.data
        if attempt is None:
            return
        until = _micros(data.get("at", event.time))
        since = _micros(data["since"]) if "since" in data else until - _micros(data.get("seconds", 0.0))
        begun = [hang for hang in attempt.hangs if (hang[0] or 0) < until]
        if begun and (begun[-1][1] is None or abs((begun[-1][0] or 0) - since) < MICRO // 100):
            begun[-1][1] = until
        else:
            attempt.hangs.append([since, until])

    def _on_adopted(self, event: Event, at: int) -> None:
        """No supervisor ran since the last event. Its ranks work on without a keeper, but no attempt begins.

        Where they may have ended meanwhile, on other machines, the event says until when they were observed: the time
        since then is theirs only as far as they tell of it, when their logs are read.
        """
        if self.attempt is None:
            self._lay("dead", (self.seen_at, at), self.seen_at, at)
            return
        until = event.data.get("observed_until")
        if isinstance(until, int | float):
            begin = max(_micros(until), self.seen_at, self.attempt.began)
            if begin < at:
                self.attempt.gaps.append([begin, at])

    def _on_node_back(self, event: Event, at: int) -> None:
        """A run whose nodes were too few has waited for this one, once its back-off was over."""
        before = self.attempts[-1] if self.attempts else None
        if before is not None and before.ended is not None:
            begin = before.ended + _micros(before.end.get("wait_seconds") or 0.0)
            self._lay("dead", (begin, at), before.ended, at)

    def _lay(self, name: str, interval: Interval, least: int, most: int) -> None:
        begin, end = max(interval[0], least), min(interval[1], most)
        if begin < end:
            self.layers.setdefault(name, []).append((begin, end))

    # -- the time -----------------------------------------------------------------------------------------------------

    def pieces(self, now: float) -> Iterator[tuple[int, int, Spent, int]]:
        """Begin, end, what for, and nodes held, of stretches that follow one another without a gap."""
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
            for left, right in _pairs([begin, *inner, end]):
                over = {name for name, intervals in layers.items() if _covers(intervals, left)}
                attempt_number = max(1, bisect_right(begins, left))
                is_held = not (phase.is_terminal or phase is Phase.QUEUED or over & _NOT_HELD)
                held = self._nodes(attempt_number) if is_held else 0
                yield left, right, _spent(phase, over), held

    def _nodes(self, attempt_number: int) -> int:
        return self.attempts[attempt_number - 1].nodes if self.attempts else 1


def _spent(phase: Phase, over: set[str]) -> Spent:
    """What a stretch in the record's `phase` was spent on, with these layers over it."""
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
    if phase is not Phase.STARTING:  # a start that is silent for long, and then works, is a start
        if "hung" in over:
            return Spent.HUNG
        if "redone" in over:
            return Spent.REDONE
        if "blocked" in over:
            return Spent.CHECKPOINTING
    return _OF_PHASE[phase]


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


def _pairs(cuts: Sequence[int]) -> Iterator[Interval]:
    for left, right in itertools.pairwise(cuts):
        if left < right:
            yield left, right
