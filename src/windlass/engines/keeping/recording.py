"""Writes what any engine sees of a run into its record, and keeps in mind what the next decision needs of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from windlass.runs.history import History
from windlass.runs.record import Phase, Status
from windlass.runs.store import RunWriter

Heed = Callable[[str, Mapping[str, Any], float], object]
"""Is told each event of the record: its kind, what it carries, and its time."""
LIVE_PHASES: Final = {"training": Phase.TRAINING, "checkpointing": Phase.CHECKPOINTING}
BEGINNING: Final = (Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING, Phase.STARTING)
"""What the nodes of an attempt go through until a rank says something, in this order."""


class Recording:
    """The record of a run, as the one who keeps the run writes it."""

    def __init__(self, writer: RunWriter, *heeds: Heed) -> None:
        self.writer = writer
        self.history = History()
        self._heeds = heeds
        self._told_until = 0.0
        """Time of the newest event that another keeper has written: what nodes said before is in the record."""
        self._told: set[str] = set()
        """The events of that keeper, where this one reads again what the nodes said."""
        for event in writer.events():
            self._keep_in_mind(event.kind, event.data, event.time)

    @property
    def status(self) -> Status:
        """The run as of its last event."""
        return self.writer.status

    def note(self, kind: str, data: Mapping[str, Any], *, at: float | None = None) -> None:
        """Write an event that was seen at `at` (Unix seconds; now). Raises StoreError."""
        at = time.time() if at is None else at
        self.writer.note(kind, data, at=at)
        self._keep_in_mind(kind, data, at)

    def once(self, kind: str, data: Mapping[str, Any], *, at: float | None = None) -> None:
        """Write an event, unless this keeper reads again what the one before it has written."""
        if _key(kind, data) not in self._told:
            self.note(kind, data, at=at)

    def read_again(self) -> None:
        """From now on, what nodes say may be in the record already: another keeper has heard the beginning."""
        events = self.writer.events()
        # Not up to the take-up itself: what nodes reported while there was no supervisor is not in the record.
        self._told_until = max(event.time for event in events if event.kind != "adopted")
        self._told = {_key(event.kind, event.data) for event in events}

    def read_anew(self) -> None:
        """From now on, what nodes say was never heard before."""
        self._told.clear()

    def is_told(self, at: float) -> bool:
        """Whether another keeper has heard what was said then."""
        return at <= self._told_until

    def enter(self, phase: Phase, *, at: float) -> None:
        """Note that ranks do now what this phase is called, if the run is where they can be doing it."""
        now = self.status.phase
        if now is not phase and now in (*BEGINNING, *LIVE_PHASES.values()):
            self.note("phase", {"phase": phase}, at=at)

    def begin_in(self, phase: Phase, *, at: float) -> None:
        """Note how far the nodes of an attempt have been brought, as long as no rank has said anything."""
        if self.status.phase in BEGINNING:
            self.enter(phase, at=at)

    def _keep_in_mind(self, kind: str, data: Mapping[str, Any], at: float) -> None:
        self.history.take(kind, data, at)
        for heed in self._heeds:
            heed(kind, data, at)


def _key(kind: str, data: Mapping[str, Any]) -> str:
    """An event as text, to know it again."""
    return f"{kind} {json.dumps(data, sort_keys=True)}"
