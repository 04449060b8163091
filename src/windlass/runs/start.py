"""Determines where an attempt continued: from a checkpoint, where the script resumed by itself, or from the beginning.

Compares the first step that the attempt reports with that of the run's first attempt. A line that the script logged
about a restore confirms the result, and decides it if no step is reported. Without either, the origin is unknown.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from windlass.runs.events import CheckpointChanged


class Origin(enum.StrEnum):
    """Kind of start of an attempt."""

    CHECKPOINT = "checkpoint"
    """A checkpoint that Windlass found or saved."""
    SCRIPT = "script"
    """A checkpoint that the script found by itself."""
    BEGINNING = "beginning"
    """The beginning of the run's first attempt."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Start:
    """Start of an attempt."""

    origin: Origin = Origin.UNKNOWN
    step: int | None = None
    """Number of completed steps at the start; None if unknown."""
    epoch: float | None = None
    """Epoch at the start, if no step is known."""
    line: str | None = None
    """Line that the script logged about the restore."""


@dataclass(slots=True)
class Reports:
    """Reports of one attempt about its start."""

    restored: CheckpointChanged | None = None
    """Event of the checkpoint that Windlass restored, or passed to the script to restore."""
    logged: CheckpointChanged | None = None
    """Event of a restore that the script logged."""
    step: int | None = None
    """First reported step."""
    every: int | None = None
    """Number of steps to the next report; None if unknown."""
    is_exact: bool = False
    """Whether `step` is the first step in the output; otherwise it is the first recorded step."""
    epoch: float | None = None
    """First reported epoch."""

    @property
    def steps_before_first_report(self) -> int | None:
        """Number of steps that a new run completes before its first report: zero, one or an interval."""
        if not self.is_exact or self.step is None:
            return None
        if self.every is None:
            return self.step if self.step <= 1 else None
        return min(self.step, self.every)


def start_of(now: Reports, first: Reports, highest_before: int, highest_epoch: float | None, *, counts: bool) -> Start:
    """Returns where the attempt with the reports `now` continued.

    `first` are the reports of the run's first attempt; `highest_before` and `highest_epoch` are the maxima of all
    earlier attempts. `counts` is False if steps restart with each epoch, which makes them useless here.
    """
    begin, step = _step_of(now, first, highest_before) if counts else (0, None)
    if now.restored is not None:
        # After a restore, the first step must be greater than at the beginning; otherwise steps are counted per epoch.
        reported = step if step is not None and step > begin else None
        return Start(Origin.CHECKPOINT, reported if now.restored.step is None else now.restored.step)
    logged = now.logged
    if logged is not None and first.logged is not None and logged.line == first.logged.line:
        logged = None  # the script logs this line at every start, so the line does not show a resume
    named, line = (None, None) if logged is None else (logged.step, logged.line)
    has_moved = now.epoch is not None and first.epoch is not None and int(now.epoch) > int(first.epoch)
    epoch = now.epoch if has_moved else None if logged is None else logged.epoch
    if step is not None and step > begin:
        is_named = named is not None and begin < named <= (now.step or 0)
        return Start(Origin.SCRIPT, named if is_named else step, None, line)
    if logged is not None or has_moved:
        # The first step is not later than at the beginning, so steps are counted per start or epoch and are useless
        # here.
        return Start(Origin.SCRIPT, named if step is None else None, epoch, line)
    if step is not None:
        return Start(Origin.BEGINNING, begin)
    if None not in (now.epoch, first.epoch, highest_epoch) and int(highest_epoch or 0) > int(first.epoch or 0):
        return Start(Origin.BEGINNING)
    return Start()


def _step_of(now: Reports, first: Reports, highest_before: int) -> tuple[int, int | None]:
    """Returns the completed steps at the start of the first attempt and of this one; None if unknown."""
    usual = first.steps_before_first_report
    begin = 0 if usual is None else (first.step or 0) - usual
    if now.step is None:
        return begin, None
    if now.is_exact:
        before = usual if usual is not None else now.steps_before_first_report
        step = max(begin, now.step - (1 if before is None else before))
        # Reports may be periodic in time, so the number of steps between them varies. A difference of less than an
        # interval does not prove a resume.
        return begin, begin if step - begin < (now.every or 0) else step
    if first.step is not None and now.step <= first.step:
        return begin, begin
    return begin, now.step - 1 if now.step > highest_before else None
