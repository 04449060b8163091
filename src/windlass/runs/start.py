"""Finds where an attempt continued: from a checkpoint, where the script resumed by itself, or from the beginning.

It compares the first step that the attempt reports with that of the run's first attempt. A line that the script logged
of a restore confirms it, and decides where no step is reported. Without either, the origin is unknown.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from windlass.runs.events import CheckpointChanged


class Origin(enum.StrEnum):
    """Where an attempt went on."""

    CHECKPOINT = "checkpoint"
    """From a checkpoint that Windlass has found, or has saved itself."""
    SCRIPT = "script"
    """From a checkpoint that the script found by itself."""
    BEGINNING = "beginning"
    """Where the first attempt of the run began."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt went on."""

    origin: Origin = Origin.UNKNOWN
    step: int | None = None
    """Steps that were behind it; None where that is not known."""
    epoch: float | None = None
    """The epoch in which it went on, where no step is known."""
    line: str | None = None
    """What the script has logged of it."""


@dataclass(slots=True)
class Reports:
    """What one attempt has reported of its beginning."""

    restored: CheckpointChanged | None = None
    """The event of the checkpoint that Windlass restored, or had the script restore."""
    logged: CheckpointChanged | None = None
    """The event of a restore that the script has logged."""
    step: int | None = None
    """The first step that it reported."""
    every: int | None = None
    """How many steps it was from there to the next report; None where that is not known."""
    is_exact: bool = False
    """Whether `step` is the first one in its output, and not the first one that was recorded."""
    epoch: float | None = None
    """The first epoch that it reported."""

    @property
    def steps_before_first_report(self) -> int | None:
        """How many steps a script like this has done when it reports its first one: none, one or an interval."""
        if not self.is_exact or self.step is None:
            return None
        if self.every is None:
            return self.step if self.step <= 1 else None
        return min(self.step, self.every)


def start_of(now: Reports, first: Reports, highest_before: int, highest_epoch: float | None, *, counts: bool) -> Start:
    """Where the attempt that reported `now` went on.

    `first` is the run's first attempt; `highest_before` and `highest_epoch` are what the attempts before have reached.
    `counts` is False for steps that begin anew with each epoch: they tell nothing.
    """
    begin, step = _step_of(now, first, highest_before) if counts else (0, None)
    if now.restored is not None:
        # It is of a later step than the beginning: steps that are not are counted anew in each epoch.
        reported = step if step is not None and step > begin else None
        return Start(Origin.CHECKPOINT, reported if now.restored.step is None else now.restored.step)
    logged = now.logged
    if logged is not None and first.logged is not None and logged.line == first.logged.line:
        logged = None  # logged at each start: it is about what the training begins from
    named, line = (None, None) if logged is None else (logged.step, logged.line)
    has_moved = now.epoch is not None and first.epoch is not None and int(now.epoch) > int(first.epoch)
    epoch = now.epoch if has_moved else None if logged is None else logged.epoch
    if step is not None and step > begin:
        is_named = named is not None and begin < named <= (now.step or 0)
        return Start(Origin.SCRIPT, named if is_named else step, None, line)
    if logged is not None or has_moved:
        # Steps that are counted from this start, or this epoch, do not say which were trained before.
        return Start(Origin.SCRIPT, named if step is None else None, epoch, line)
    if step is not None:
        return Start(Origin.BEGINNING, begin)
    if None not in (now.epoch, first.epoch, highest_epoch) and int(highest_epoch or 0) > int(first.epoch or 0):
        return Start(Origin.BEGINNING)
    return Start()


def _step_of(now: Reports, first: Reports, highest_before: int) -> tuple[int, int | None]:
    """The steps that were behind the first attempt when it began, and behind this one; None where nothing tells."""
    usual = first.steps_before_first_report
    begin = 0 if usual is None else (first.step or 0) - usual
    if now.step is None:
        return begin, None
    if now.is_exact:
        before = usual if usual is not None else now.steps_before_first_report
        step = max(begin, now.step - (1 if before is None else before))
        # Reports are a time apart, and so not always as many steps: less than an interval shows no resume.
        return begin, begin if step - begin < (now.every or 0) else step
    if first.step is not None and now.step <= first.step:
        return begin, begin
    return begin, now.step - 1 if now.step > highest_before else None
