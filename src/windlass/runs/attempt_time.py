"""Collects how one attempt spent its time, from its events: hangs, steps trained again, waits for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from windlass.runs import events
from windlass.runs.attempt_steps import AttemptSteps

MICRO: Final = 1_000_000
"""Times are summed as whole microseconds, because sums of floats are not exact."""
_TRUE_HANGS: Final = frozenset({"silence", "failure"})
"""Reasons of stack dumps that indicate a hang. For other reasons, the ranks were quiet when the attempt was stopped."""

Interval = tuple[int, int]
End = events.AttemptEnded | events.RunEnding | events.RunEnded


@dataclass(slots=True)
class _Hang:
    since: int
    until: int | None = None
    """End of the hang in microseconds; None while it is unknown."""

    def is_same(self, since: int) -> bool:
        """Whether this hang is the one that began at `since`."""
        return abs(since - self.since) < MICRO // 100


@dataclass(slots=True)
class AttemptTime:
    """Times of one attempt, collected from its events. All times are whole microseconds."""

    began: int
    entry: events.AttemptStarted
    end: events.AttemptEnded = field(default_factory=lambda: events.AttemptEnded(None))
    """Event that ended the attempt; None while it runs."""
    ended: int | None = None
    another_follows: bool = False
    died_at: int | None = None
    """Last sign of life of an attempt whose end was not observed."""
    trained_at: int | None = None
    failed_at: int | None = None
    """Time of the first rank's failure, or a lost node's last sign of life, whichever is earlier."""
    progressed_at: int = 0
    """When the newest progress was recorded."""
    late_at: int | None = None
    """When the job's time limit ended the attempt."""
    steps: AttemptSteps = field(default_factory=AttemptSteps)
    gaps: list[Interval] = field(default_factory=list)
    """Intervals without a supervisor and without a known sign of life."""
    rank_ends: dict[int, int] = field(default_factory=dict)
    """When each rank ended, by rank."""
    hangs: list[_Hang] = field(default_factory=list)
    blocked: list[Interval] = field(default_factory=list)
    """Intervals in which a training thread waited for a checkpoint."""

    @property
    def gone_at(self) -> int | None:
        """When the last rank ended, or was last observed; None while a rank may be alive."""
        if self.died_at is not None:
            return self.died_at
        is_over = len(self.rank_ends) >= self.entry.world_size > 0
        return max(self.rank_ends.values()) if is_over else None

    def layers(self, end: int) -> Iterator[tuple[str, Interval]]:
        """Yields the intervals of the attempt up to `end`, each with a label for its kind of time."""
        gone_at = self.gone_at
        for begin, taken_up in self.gaps:
            if gone_at is not None and gone_at <= taken_up:
                # If no rank failed, all time from the last rank's end to `end` counts as "gone".
                yield "gone", (max(begin, gone_at), taken_up if self.failed_at is not None else end)
                taken_up = gone_at
            yield "unobserved", (begin, taken_up)
        if self.died_at is not None:
            yield "dead", (self.died_at, end)
        if ending := [at for at in (self.failed_at, self.late_at) if at is not None]:
            yield ("restarting" if self.another_follows else "stopping"), (min(ending), end)
        for hang in self.hangs:
            yield ("stuck", (hang.since, end)) if hang.until is None else ("hung", (hang.since, hang.until))
        if self.trained_at is not None and self.steps.is_below(has_ended=self.ended is not None):
            yield "redone", (self.trained_at, end if self.steps.caught_up is None else self.steps.caught_up[0])
        for interval in self.blocked:
            yield "blocked", interval

    # -- events -------------------------------------------------------------------------------------------------------

    def take(self, entry: events.Entry, at: int) -> None:
        """Adds an event of the attempt other than its end."""
        match entry:
            case events.RankChanged(rank=rank, exit_code=int(code)):
                self.rank_ends[rank] = at
                if code and self.failed_at is None:
                    self.failed_at = at
            case events.NodeLost(since=float(since)):
                # A loss is detected late. If peers made progress since, they were not waiting for the lost node.
                # `at` is the upper limit, because the node's clock may be ahead.
                since = min(at, max(micros(since), self.progressed_at, self.began))
                self.failed_at = since if self.failed_at is None else min(self.failed_at, since)
            case events.Progress():
                self.progressed_at = max(self.progressed_at, at)
                self.steps.take_progress(entry)
            case events.FirstStep(step=int(step)):
                self.steps.take_first(step, entry.every)
            case events.CaughtUp(step=step) if self.steps.caught_up is None:
                self.steps.caught_up = (at, step)
            case events.CheckpointChanged():
                self._take_checkpoint(entry, at)
            case events.ShutdownBegun("timeout"):
                self.late_at = at
            case events.HangDetected() if entry.reason in _TRUE_HANGS:
                since = at - micros(entry.seconds) if entry.since is None else micros(entry.since)
                if not any(hang.is_same(since) for hang in self.hangs):
                    self.hangs.append(_Hang(since))  # several nodes report the same hang, which is added once
            case events.HangEnded():
                self._take_hang_end(entry, at)

    def take_end(self, entry: End, at: int, lost_at: int | None) -> None:
        """Adds the end of the attempt. `lost_at` is the last sign of life of a lost run."""
        self.end = entry if isinstance(entry, events.AttemptEnded) else events.AttemptEnded(entry.phase, entry.reason)
        self.died_at = lost_at if entry.died_at is None else micros(entry.died_at)
        self.steps.reached = max(self.steps.reached, entry.step or 0)
        self.close(at, another_follows=self.end is entry)

    def close(self, at: int, *, another_follows: bool) -> None:
        """Sets the end of the attempt, and whether another attempt follows."""
        self.ended = max(at, self.began)
        self.another_follows = another_follows

    def observe(self, at: int) -> None:
        """Records a sign of life at `at`. The part of a gap before `at` no longer counts."""
        self.gaps = [(max(begin, at), end) for begin, end in self.gaps if at < end]

    def _take_checkpoint(self, entry: events.CheckpointChanged, at: int) -> None:
        self.steps.take_checkpoint(entry)
        if entry.blocked_at is not None and entry.blocked_seconds is not None:
            end = micros(entry.blocked_at + max(0.0, entry.blocked_seconds))
            self.blocked.append((micros(entry.blocked_at), min(end, at)))

    def _take_hang_end(self, entry: events.HangEnded, at: int) -> None:
        until = at if entry.at is None else micros(entry.at)
        since = until - micros(entry.seconds) if entry.since is None else micros(entry.since)
        begun = next((hang for hang in reversed(self.hangs) if hang.since < until), None)
        if begun is not None and (begun.until is None or begun.is_same(since)):
            begun.until = until
        else:
            self.hangs.append(_Hang(since, until))


def micros(seconds: float) -> int:
    """Converts seconds to whole microseconds; 0 for impossible times."""
    return round(seconds * MICRO) if math.isfinite(seconds) else 0
