"""Recorder: writes a run's events into its record, and maintains the history for the next decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from windlass.runs.clock import Clock
from windlass.runs.events import ConditionChanged, Entry, PhaseEntered, ShutdownBegun, SupervisorRestarted
from windlass.runs.history import History
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import RunWriter

Observer = Callable[[Entry, float], object]
"""Called with each recorded entry and its time in Unix seconds."""
LIVE_PHASES: Final = {"training": Phase.TRAINING, "checkpointing": Phase.CHECKPOINTING}
BEGINNING: Final = (Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING, Phase.STARTING)
"""Phases of an attempt before a rank writes any output, in order."""


class Recorder:
    """Writer of a run's record, used by its supervisor."""

    def __init__(self, writer: RunWriter, *observers: Observer, clock: Clock | None = None) -> None:
        self.writer = writer
        self.history = History()
        self._clock = clock or Clock()
        self._observers = observers
        self._recorded_until = 0.0
        """Time of the previous supervisor's newest event; earlier reports of nodes are in the record."""
        self._recorded: set[str] = set()
        """Events that the previous supervisor recorded, until this supervisor has read the nodes' events again."""
        for event in writer.events():
            self._observe(event.entry, event.time)

    @property
    def status(self) -> Status:
        """Status of the run after its last event."""
        return self.writer.status

    def now(self) -> float:
        """Returns the wall time in Unix seconds."""
        return self._clock.time()

    def note(self, entry: Entry, *, at: float | None = None) -> None:
        """Writes an event observed at `at` (Unix seconds; default: now). Raises StoreError."""
        at = self.now() if at is None else at
        self.writer.note(entry, at=at)
        self._observe(entry, at)

    def once(self, entry: Entry, *, at: float | None = None) -> None:
        """Writes an event unless the previous supervisor has written it."""
        if _key(entry) not in self._recorded:
            self.note(entry, at=at)

    def condition(self, kind: str | None, message: str = "", fix: str = "") -> None:
        """Records, once, a condition that prevents supervision of the run. None records the end of the condition."""
        if kind != (self.status.supervision.condition.type if self.status.supervision.condition is not None else None):
            self.note(ConditionChanged(kind, message, fix=fix) if fix else ConditionChanged(kind, message))

    def begin_replay(self) -> None:
        """Treats the following node events as possibly recorded by the previous supervisor."""
        events = self.writer.events()
        # Node events later than the last recorded one are new. Adoptions and shutdowns have the times of a supervisor,
        # and do not count.
        own = (SupervisorRestarted.kind, ShutdownBegun.kind)
        self._recorded_until = max(event.time for event in events if event.kind not in own)
        self._recorded = {_key(event.entry) for event in events}

    def end_replay(self) -> None:
        """Treats the following node events as new, because this supervisor starts their attempt."""
        self._recorded.clear()

    def is_recorded(self, at: float) -> bool:
        """Whether the previous supervisor has read the node events of this time."""
        return at <= self._recorded_until

    def enter(self, phase: Phase, *, at: float) -> None:
        """Records a phase of the ranks, if it may follow the run's current phase."""
        now = self.status.phase
        if now is not phase and now in (*BEGINNING, *LIVE_PHASES.values()):
            self.note(PhaseEntered(phase), at=at)

    def begin_in(self, phase: Phase, *, at: float) -> None:
        """Records the start phase of an attempt, unless a rank has already written output."""
        if self.status.phase in BEGINNING:
            self.enter(phase, at=at)

    def _observe(self, entry: Entry, at: float) -> None:
        self.history.take(entry, at)
        for observer in self._observers:
            observer(entry, at)


def _key(entry: Entry) -> str:
    return f"{entry.kind} {json.dumps(entry.to_json(), sort_keys=True)}"
