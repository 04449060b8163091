"""What every engine is: two doors, `plan` (pure) and `connect`, and the handful of things a connected engine does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from windlass.errors import UsageError
from windlass.plan.plan import Plan
from windlass.runs.record import Phase, Status
from windlass.runs.store import RunWriter
from windlass.runs.wish import forget_wish

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations

RESUMABLE: Final = frozenset({Phase.FAILED, Phase.STOPPED, Phase.LOST})
"""Ends after which there may be something left to do."""
POLL_SECONDS: Final = 0.03


class Engine(Protocol):
    """One target, connected. Runs are named by id; what they are stands in the record."""

    def submit(self, plan: Plan) -> Status:
        """Write the record, then start the run; returns as soon as the run no longer needs the caller.

        Raises PlanError if the plan is blocked, EngineError if the target refuses, StoreError if the record cannot be
        written. On any error nothing is left behind.
        """

    def status(self, run_id: str) -> Status:
        """The status, true now: a run whose keeper died is taken up again or ended as `lost`. Raises NoSuchRun."""

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Ask the run to end: SIGTERM, its grace period, SIGKILL; `now` leaves out the grace. A no-op once ended."""

    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        """Give an ended run new attempts, with the same record and folders; returns once it no longer needs the caller.

        `plan` replaces the run's own, such as one for another number of nodes; it has the same run id. `checkpoint`, a
        name or a path, is what the ranks go on from instead of the newest one, as `WINDLASS_RESUME_FROM`, until they
        have saved one of their own. Restarts and the time limit are counted anew.

        Raises NoSuchRun, UsageError for a run that goes on or has succeeded, PlanError if the plan is blocked,
        EngineError, StoreError.
        """

    def delete(self, run_id: str) -> None:
        """Remove an ended run with all it left. Raises UsageError while it goes on."""

    def observe(self, run_id: str) -> Observations:
        """All that can be seen of a run, for a diagnosis. Changes nothing. Raises NoSuchRun."""

    def left_running(self, run_id: str) -> list[str]:
        """What still works of a run that has ended by its record. Raises EngineError."""
        return []

    def wait(
        self, run_id: str, timeout: float | None = None, on_change: Callable[[Status], None] | None = None
    ) -> Status:
        """Block until the run has ended, at most `timeout` seconds; gives the last status seen either way."""
        give_up = None if timeout is None else time.monotonic() + timeout
        seen = None
        while True:
            status = self.status(run_id)
            if on_change is not None and status != seen:
                on_change(status)
            if status.phase.is_terminal or (give_up is not None and time.monotonic() >= give_up):
                return status
            seen = status
            time.sleep(POLL_SECONDS)


def reopen(writer: RunWriter, run_dir: Path, plan: Plan | None, checkpoint: str | None) -> None:
    """Write down that an ended run goes on, with what is new of it. Raises UsageError, StoreError."""
    status = writer.status
    if status.phase not in RESUMABLE:
        if status.phase is Phase.SUCCEEDED:
            raise UsageError(f"{status.id} has succeeded: nothing is left to do", "windlass run begins a new run")
        raise UsageError(f"{status.id} has not ended: it is {status.phase}", f"windlass logs -f {status.id}")
    forget_wish(run_dir)
    policy = (Plan.from_json(writer.store.plan(status.id)) if plan is None else plan).policy
    new: dict[str, Any] = {"machine": writer.store.machine.to_json()}
    if "max_restarts" in policy:
        new["restarts"] = policy["max_restarts"]
    if plan is not None:
        new["nodes"] = plan.num_nodes
    if checkpoint is not None:
        new["from"] = checkpoint
    writer.append(
        "resume",
        {"reason": "asked", **new},
        plan=None if plan is None else plan.to_text(),
    )


Environment = Mapping[str, str]
