"""Copies a supervisor's events to the record in the cluster, in order, from a background thread.

The supervisor continues while the API server is unreachable. An action that requires a written record, such as the
start of an attempt, waits for `flush`.
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
"""Seconds for which events are collected into one write."""
PROGRESS_SECONDS: Final = 10.0
"""Seconds between two writes if only the progress has changed."""
CHECK_SECONDS: Final = 30.0
"""Seconds between two writes without changes, which restore a record that another client has changed or deleted."""


class Mirror:
    """Writes events and the resulting status to the record in the cluster."""

    def __init__(self, record: ClusterRecord, health: Health) -> None:
        self._record = record
        self._changed = threading.Condition()
        self._status: Status | None = None
        self._progress: Json = {}
        self._waiting: list[Event] = []
        self._is_progress_new = False
        self._is_urgent = False
        self._written_at = float("-inf")
        """Time of the last write, in monotonic seconds."""
        self._closed = threading.Event()
        self.is_lost = False
        """Whether another supervisor has written the record, so that this supervisor must stop."""
        background.start("record in the cluster", self._turn, self._closed, health, is_paced=True)

    def put(self, status: Status, added: Sequence[Event]) -> None:
        """Queues events, and the status after them, for writing."""
        with self._changed:
            self._status = status
            self._waiting += added
            self._changed.notify_all()

    def put_progress(self, progress: Json) -> None:
        """Queues progress, which is written with the next events or after PROGRESS_SECONDS."""
        with self._changed:
            self._progress, self._is_progress_new = progress, True
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Waits at most `seconds` until all queued events are written; returns whether the queue is empty."""
        give_up = time.monotonic() + seconds
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            while self._waiting and not self.is_lost and time.monotonic() < give_up:
                self._changed.wait(give_up - time.monotonic())
            self._is_urgent = False
            return not self._waiting

    def close(self) -> None:
        """Stops writing; queued events are discarded."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def _turn(self) -> bool:
        """Writes the queued events once a write is due; returns whether the thread must end."""
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
        """Waits until a write is due; returns the queued events, and the newest status and progress.

        The status is None if the mirror was closed meanwhile.
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
        if self._waiting and self._is_urgent:
            return 0.0
        pause = GATHER_SECONDS if self._waiting else PROGRESS_SECONDS if self._is_progress_new else CHECK_SECONDS
        return self._written_at + pause - time.monotonic()


class MirroredStore(Store):
    """Store of a supervisor in the cluster, for one run; passes each change to a `Mirror`."""

    def __init__(self, home: Path, mirror: Mirror) -> None:
        """Opens the store. Raises StoreError."""
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
