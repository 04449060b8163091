"""Mirrors what a supervisor records to the record in the cluster: in a thread, in the order of the events.

The supervisor goes on while the API server is away. What it must not do before its record is in the cluster, such as
start an attempt, waits for `flush`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.background import Health
from windlass.engines.kubernetes.supervisor.record import ClusterRecord
from windlass.runs.events import Event, Json
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.supervise.backend import HeldElsewhere

GATHER_SECONDS: Final = 0.5
"""How long events gather before they are written."""
PROGRESS_SECONDS: Final = 10.0
"""Between two writes of nothing but progress."""
CHECK_SECONDS: Final = 30.0
"""Between two writes of nothing new, which restore a record that something else has changed or deleted."""


class Mirror:
    """Writes events to the record in the cluster, and its status after them."""

    def __init__(self, record: ClusterRecord, health: Health) -> None:
        self._record = record
        self._changed = threading.Condition()
        self._status: Status | None = None
        self._progress: Json = {}
        self._waiting: list[Event] = []
        self._is_progress_new = False
        self._is_urgent = False
        self._written_at = float("-inf")
        """Monotonic seconds."""
        self._closed = threading.Event()
        self.is_lost = False
        """Whether another supervisor has written the record: this one must not act any more."""
        background.start("record in the cluster", self._turn, self._closed, health, is_paced=True)

    def put(self, status: Status, added: Sequence[Event]) -> None:
        """Write these events, and the status after them."""
        with self._changed:
            self._status = status
            self._waiting += added
            self._changed.notify_all()

    def put_progress(self, progress: Json) -> None:
        """Write this progress with the next events, or after some seconds."""
        with self._changed:
            self._progress, self._is_progress_new = progress, True
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all that was put is written, at most so long; returns whether it is."""
        give_up = time.monotonic() + seconds
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            while self._waiting and not self.is_lost and time.monotonic() < give_up:
                self._changed.wait(give_up - time.monotonic())
            self._is_urgent = False
            return not self._waiting

    def close(self) -> None:
        """Write nothing more."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def _turn(self) -> bool:
        """Write what there is, once it is due; returns whether there will be nothing more."""
        added, status, progress = self._next()
        if status is None:
            return self._closed.is_set()
        try:
            self._record.write(added, status, progress)
        except HeldElsewhere:
            self.is_lost = True
            self._wake()
            return True
        with self._changed:
            del self._waiting[: len(added)]
        self._written_at = time.monotonic()
        self._wake()
        return False

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _next(self) -> tuple[list[Event], Status | None, Json]:
        """The events that the thread writes next, once they are due, with the status and progress after them.

        The status is None where the mirror was closed meanwhile.
        """
        with self._changed:
            while not self._closed.is_set():
                due_in = None if self._status is None else self._due_in()
                if due_in is not None and due_in <= 0 and self._status is not None:
                    self._is_progress_new = False
                    return list(self._waiting), self._status, self._progress
                self._changed.wait(due_in)
        return [], None, {}

    def _due_in(self) -> float:
        """Seconds until the thread has to write."""
        if self._waiting and self._is_urgent:
            return 0.0
        pause = GATHER_SECONDS if self._waiting else PROGRESS_SECONDS if self._is_progress_new else CHECK_SECONDS
        return self._written_at + pause - time.monotonic()


class MirroredStore(Store):
    """The store of a supervisor in the cluster: of one run, whose events it also gives to a mirror."""

    def __init__(self, home: Path, mirror: Mirror) -> None:
        """Raises StoreError."""
        super().__init__(home)
        self.mirror = mirror

    @override
    def append(self, after: Status, added: Sequence[Event], plan: str | None = None) -> None:
        super().append(after, added, plan)
        self.mirror.put(after, added)

    @override
    def set_progress(self, run_id: str, progress: Json) -> None:
        super().set_progress(run_id, progress)
        self.mirror.put_progress(progress)
