"""Collects the steps that one attempt trained: where the attempt started, how far it got, and which steps it
repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.runs import events
from windlass.runs.start import Origin, Reports, Start


@dataclass(slots=True)
class AttemptSteps:
    """The steps of one attempt."""

    highest_before: int = 0
    """The highest step that any earlier attempt reached; known once all events are read."""
    start: Start = field(default_factory=Start)
    """Where the attempt continued; known once all events are read."""
    reports: Reports = field(default_factory=Reports)
    highest_epoch: float | None = None
    last: int | None = None
    """The step that was recorded last."""
    rise: bool = True
    """Whether recorded steps never decreased."""
    reached: int = 0
    """The highest reported step."""
    saved: int = 0
    """The step of the newest checkpoint."""
    caught_up: tuple[int, int] | None = None
    """Time in microseconds, and step, at which the attempt caught up with the highest step of earlier attempts."""

    def is_below(self, *, has_ended: bool) -> bool:
        """Whether the attempt started at a lower step than earlier attempts had reached, so that it repeats steps."""
        if self.highest_before <= 0:
            return False
        if self.start.step is not None:
            return self.start.step < self.highest_before
        if self.start.origin is not Origin.UNKNOWN:
            return self.start.origin is Origin.BEGINNING
        if self.caught_up is not None:
            return True
        return has_ended if self.reports.step is None else self.reports.step <= self.highest_before

    @property
    def reached_before(self) -> int | None:
        """The highest step of earlier attempts; None if unknown."""
        # A start beyond the highest reported step shows that reports are incomplete, or do not count the steps of the
        # run.
        return self.highest_before if self.highest_before >= max(1, self.start.step or 0) else None

    @property
    def redone(self) -> int | None:
        """Number of steps trained again; None if unknown."""
        if self.start.step is None:
            return None
        reached = max(self.saved, self.reached, self.caught_up[1] if self.caught_up else 0)
        return max(0, min(self.highest_before, reached) - self.start.step)

    def take_progress(self, entry: events.Progress) -> None:
        """Adds a progress report of the script."""
        reports, step, epoch = self.reports, entry.step, entry.epoch
        if epoch is not None and epoch >= 0:
            reports.epoch = epoch if reports.epoch is None else reports.epoch
            self.highest_epoch = max(self.highest_epoch or 0, epoch)
        if step is None or step < 0:
            return
        if self.last is not None and step < self.last:
            self.rise = False
        reports.step = step if reports.step is None else reports.step
        self.reached = max(self.reached, step)
        self.last = step

    def take_first(self, step: int, every: int | None) -> None:
        """Adds the first step in a rank's output, which may be much earlier than the first recorded step."""
        self.reports.step, self.reports.is_exact = step, True
        self.reports.every = every if every and every > 0 else None

    def take_checkpoint(self, entry: events.CheckpointChanged) -> None:
        """Adds a saved or restored checkpoint."""
        reports = self.reports
        if entry.action == "restored" and entry.source == "log":
            reports.logged = entry
        elif entry.action == "restored" and (reports.restored is None or entry.step is not None):
            reports.restored = entry
        elif entry.action == "saved" and entry.step is not None:
            self.saved = max(self.saved, entry.step)
