"""Recorder: writes a run's events into its record, and keeps the history that the next decision needs."""

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
"""Called with what each event of the record carries, and its time in unix seconds."""
LIVE_PHASES: Final = {"training": Phase.TRAINING, "checkpointing": Phase.CHECKPOINTING}
BEGINNING: Final = (Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING, Phase.STARTING)
"""The phases of an attempt until a rank writes something, in this order."""


class Recorder:
    """The record of a run, as its supervisor writes it."""

    def __init__(self, writer: RunWriter, *observers: Observer, clock: Clock | None = None) -> None:
        self.writer = writer
        self.history = History()
        self._clock = clock or Clock()
        self._observers = observers
        self._recorded_until = 0.0
        """Time of the newest event of the supervisor before this one: what nodes reported before is in the record."""
        self._recorded: set[str] = set()
        """The events of that supervisor, where this one reads the reports of the nodes again."""
        for event in writer.events():
            self._observe(event.entry, event.time)

    @property
    def status(self) -> Status:
        """The run's status after its last event."""
        return self.writer.status

    def now(self) -> float:
        """Wall time, in unix seconds."""
        return self._clock.time()

    def note(self, entry: Entry, *, at: float | None = None) -> None:
        """Write an event that was observed at `at` (unix seconds; now). Raises StoreError."""
        at = self.now() if at is None else at
        self.writer.note(entry, at=at)
        self._observe(entry, at)

    def once(self, entry: Entry, *, at: float | None = None) -> None:
        """Write an event, unless the previous supervisor has written it."""
        if _key(entry) not in self._recorded:
            self.note(entry, at=at)

    def condition(self, kind: str | None, message: str = "", fix: str = "") -> None:
        """Record, once, what keeps the run from being supervised; None ends the condition."""
        if kind != (self.status.supervision.condition.type if self.status.supervision.condition is not None else None):
            self.note(ConditionChanged(kind, message, fix=fix) if fix else ConditionChanged(kind, message))

    def begin_replay(self) -> None:
        """From now on, reports of nodes may be in the record already: another supervisor has read their beginning."""
        events = self.writer.events()
        # Not up to the adoption itself: what nodes reported while there was no supervisor is not in the record.
        # Nor up to a shutdown, whose time is the supervisor's.
        own = (SupervisorRestarted.kind, ShutdownBegun.kind)
        self._recorded_until = max(event.time for event in events if event.kind not in own)
        self._recorded = {_key(event.entry) for event in events}

    def end_replay(self) -> None:
        """From now on, reports of nodes are new: they are of an attempt that this supervisor starts."""
        self._recorded.clear()

    def is_recorded(self, at: float) -> bool:
        """Whether the supervisor before this one has read what was reported then."""
        return at <= self._recorded_until

    def enter(self, phase: Phase, *, at: float) -> None:
        """Record the phase of the ranks, if the run's phase allows the transition."""
        now = self.status.phase
        if now is not phase and now in (*BEGINNING, *LIVE_PHASES.values()):
            self.note(PhaseEntered(phase), at=at)

    def begin_in(self, phase: Phase, *, at: float) -> None:
        """Record the start phase of an attempt, until a rank writes something."""
        if self.status.phase in BEGINNING:
            self.enter(phase, at=at)

    def _observe(self, entry: Entry, at: float) -> None:
        self.history.take(entry, at)
        for observer in self._observers:
            observer(entry, at)


def _key(entry: Entry) -> str:
    """Identifies an event by its text."""
    return f"{entry.kind} {json.dumps(entry.to_json(), sort_keys=True)}"
