"""Admits a run on this machine: waits for the success of other runs (`--after`), and for slots of its target."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from windlass.engines.local.slots import SlotQueue, Ticket
from windlass.errors import NoSuchRun, WindlassError
from windlass.plan.plan import Plan
from windlass.plan.steps import AfterStep, QueueStep
from windlass.runs.clock import Clock
from windlass.runs.events import FOR_RUN, FOR_SLOTS, REMOVED_BEFORE, PhaseEntered, QueueChanged
from windlass.runs.machine import this_machine
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.supervise.backend import NotAdmitted
from windlass.supervise.recorder import Recorder

CHECK_SECONDS: Final = 1.0
MAX_CHECK_SECONDS: Final = 10.0
"""Maximum seconds between two checks for admission of a run with many others ahead of it."""
UpdateStatus = Callable[[Store, str], object]
"""Function that updates the status of another run, and restarts its supervisor if that was killed."""


def queue_folder(home: Path, target: str) -> Path:
    """Returns the folder of a target's queue. Machines that share a home have separate queues."""
    return home / "slots" / this_machine(os.environ).id / target


class Admission:
    """Decides for one run whether its next attempt may start."""

    def __init__(self, plan: Plan, home: Path, update_status: UpdateStatus) -> None:
        self._update_status = update_status
        self._target = plan.target
        self._run_id = plan.run_id
        self._after = [step.run for step in plan.every(AfterStep)]
        self._queue = plan.first(QueueStep)
        self.slots = SlotQueue(queue_folder(home, plan.target), plan.run_id)
        self._check_at = 0.0
        self.numbers: tuple[int, ...] = ()
        """Numbers of the slots that are reserved for the run."""

    def turn(self, record: Recorder, clock: Clock) -> bool:
        """Returns whether the run may start, and records why not. Raises NotAdmitted if the run can never start."""
        if (self._queue is None and not self._after) or self.numbers:
            return True
        if clock.monotonic() < self._check_at:
            return False
        self._check_at = clock.monotonic() + CHECK_SECONDS
        if record.status.attempts:
            self._after.clear()
        reason, why = FOR_RUN, self._why_not_yet(record.writer.store)
        if not why:
            self._after.clear()
            reason, why = FOR_SLOTS, self._take(record, clock)
        if why:
            self._note_waiting(record, reason, why)
        elif record.status.waits_for:
            record.note(QueueChanged("admitted", self._target))
        return not why

    def _take(self, record: Recorder, clock: Clock) -> str:
        """Reserves the slots. Returns why the run must wait, or ""."""
        if self._queue is None:
            return ""
        status = record.status
        since = status.times.phase_since if status.phase is Phase.QUEUED else clock.time()
        mine = Ticket(self._run_id, self._queue.takes, self._queue.priority, since)
        try:
            self.numbers, why, num_ahead = self.slots.take(mine, self._queue.of)
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            return f"its queue cannot be read or written ({error.strerror or error}{where})"
        self._check_at = clock.monotonic() + min(MAX_CHECK_SECONDS, CHECK_SECONDS * (1 + num_ahead))
        return why

    def _note_waiting(self, record: Recorder, reason: str, why: str) -> None:
        if record.status.phase is not Phase.QUEUED:
            record.note(PhaseEntered(Phase.QUEUED))
        event = QueueChanged("waiting", self._target, reason=reason, message=why)
        if record.status.waits_for != event.waits_for:
            record.note(event)

    def _why_not_yet(self, store: Store) -> str:
        """Returns a text with the runs that have not succeeded yet, or "". Raises NotAdmitted if one failed or was
        removed.
        """
        waiting = []
        for run_id in self._after:
            try:
                with contextlib.suppress(WindlassError):  # if the update fails, the recorded status is used
                    self._update_status(store, run_id)
                status = store.status(run_id, with_progress=False)
            except NoSuchRun:
                raise NotAdmitted(f"{run_id}, after which it was to start, {REMOVED_BEFORE}") from None
            if status.phase is Phase.SUCCEEDED:
                continue
            if status.phase.is_terminal:
                raise NotAdmitted(f"{run_id}, after which it was to start, ended as {status.phase}")
            waiting.append(run_id)
        return f"it starts after the success of {' and '.join(waiting)}" if waiting else ""
