"""An engine whose runs are kept by detached supervisors: submits plans to them, and keeps their records true."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windlass.engines.base import POLL_SECONDS, Engine, reopen
from windlass.engines.keeping.ground import Ground
from windlass.engines.keeping.keeper import keeper_pid
from windlass.engines.keeping.supervisor import Supervisor
from windlass.errors import EngineError, StoreError, UsageError, WindlassError
from windlass.plan.plan import Plan
from windlass.runs.record import Status
from windlass.runs.store import RunWriter, Store
from windlass.runs.wish import Wish, write_wish
from windlass.worker import process

KEEPER_SECONDS = 1.0
"""How long a supervisor may take until it says who it is."""
LEAVE_SECONDS = 30.0
"""How long one may take to end once it has written the end of its run."""


class KeptEngine(Engine):
    """Runs that a process of this machine keeps, wherever they take place."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock

    # -- what an engine adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _keeper_command(self, run_id: str, lock: int) -> Sequence[str]:
        """What starts the supervisor of a run, whose lock it inherits as a descriptor."""

    @abstractmethod
    def _ground(self, plan: Plan, run_dir: Path) -> Ground:
        """Where the attempts of a run take place."""

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        """Make what all attempts share, and what can be made by now of the first one.

        Raises EngineError, StoreError; what it made then is removed by `_undo`.
        """

    def _undo(self, plan: Plan) -> None:
        """Remove what `_prepare` made. Raises EngineError."""

    def _clean_up(self, plan: Plan) -> None:
        """Remove what the run has made outside of its folder. Raises EngineError."""

    def _settle(self, supervisor: Supervisor) -> bool:
        """Bring the record of a run without supervisor to the truth, if nothing of it lives; else give False."""
        return supervisor.settle()

    def _until_when_observed(self, run_id: str) -> dict[str, Any]:
        """What the event `adopted` carries: `observed_until`, where nodes may have ended unseen since then."""
        return {}

    def _hand_over(self, run_id: str, lock: int, log: int) -> bool:
        """Give the run to a supervisor that waits already; gives whether there was one."""
        return False

    # -- the engine ---------------------------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> Status:
        """Write the record and start the supervisor, which inherits the run's lock: a run is never without a keeper.

        Raises PlanError if the plan is blocked, EngineError if the target refuses or no process can be started,
        StoreError if the record cannot be written.
        """
        plan.require_runnable()
        writer = self.store.create(
            plan.run_id, name=plan.name, target=plan.target, output_dir=plan.output_dir, plan=plan.to_text(),
            time=self._clock(), restarts=plan.policy.get("max_restarts"),
        )  # fmt: skip
        try:
            self._prepare(plan, writer)
            self._start_keeper(writer)
        except BaseException as error:
            with contextlib.suppress(WindlassError):  # what is left is tied to a run that nobody knows
                self._undo(plan)
            writer.close()
            self.store.delete(plan.run_id)
            if isinstance(error, OSError):
                raise EngineError(f"no supervisor could be started ({error})", "see: windlass doctor") from error
            raise
        writer.close()
        return writer.status

    def status(self, run_id: str) -> Status:
        """The status, true now. Raises NoSuchRun."""
        give_up = time.monotonic() + KEEPER_SECONDS
        while True:
            status = self.store.status(run_id)
            if status.phase.is_terminal:
                return status
            if not self.store.is_held(run_id):
                taken_up = self._take_up(run_id)
                if taken_up is not None:
                    return taken_up
            # Held, but by a keeper? It may be another command that is just bringing the record to the truth.
            if keeper_pid(self.store.run_dir(run_id)) is not None or time.monotonic() >= give_up:
                return status
            time.sleep(POLL_SECONDS)

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Ask the run to end. Raises NoSuchRun."""
        if self.store.status(run_id).phase.is_terminal:
            return
        run_dir = self.store.run_dir(run_id)
        try:
            write_wish(run_dir, Wish(now=now))  # first of all: a run without a supervisor is then not started again
        except OSError as error:
            # A full disk must not keep a run alive: the signal alone is a wish, though one with a grace period.
            if not self._wake_keeper(run_id):
                raise StoreError(f"{run_dir} cannot be written ({error.strerror})", "free some space") from error
        else:
            self._wake_keeper(run_id)
            self.status(run_id)

    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        """Give an ended run new attempts. Raises NoSuchRun, UsageError, PlanError, EngineError, StoreError."""
        if plan is not None:
            plan.require_runnable()
        self.status(run_id)  # one whose supervisor died may not have ended
        writer = self._writer_of_ended(run_id)
        if writer is None:
            raise UsageError(f"{run_id} has not ended: it is {self.store.status(run_id).phase}",
                             f"windlass logs -f {run_id}")  # fmt: skip
        try:
            self._prepare(plan or Plan.from_json(self.store.plan(run_id)), writer)
            run_dir = self.store.run_dir(run_id)
            reopen(writer, run_dir, plan, checkpoint)
            if (log := run_dir / "supervisor.log").exists():  # what broke before is no reason not to try again
                log.replace(run_dir / f"supervisor-{len(writer.status.attempts)}.log")
            self._start_keeper(writer)
        except OSError as error:
            hint = "the next windlass command starts it; see: windlass doctor"
            raise EngineError(f"no supervisor could be started ({error})", hint) from error
        finally:
            writer.close()
        return writer.status

    def _writer_of_ended(self, run_id: str) -> RunWriter | None:
        """The writer of a run; one that has ended is waited for, as long as its supervisor may take to leave it."""
        give_up = time.monotonic() + LEAVE_SECONDS
        while True:
            writer = self.store.writer(run_id)
            if writer is not None or time.monotonic() >= give_up:
                return writer
            if not self.store.status(run_id).phase.is_terminal:
                return None
            time.sleep(POLL_SECONDS)

    def delete(self, run_id: str) -> None:
        """Remove an ended run. Raises UsageError while it goes on."""
        if not self.status(run_id).phase.is_terminal:
            raise UsageError(f"{run_id} has not ended", f"windlass stop {run_id}, then remove it")
        self._clean_up(Plan.from_json(self.store.plan(run_id)))
        self.store.delete(run_id)

    # -- the keeper ---------------------------------------------------------------------------------------------------

    def _start_keeper(self, writer: RunWriter) -> None:
        """A process of its own session, so that neither a closed terminal nor Ctrl-C reaches it."""
        run_id = writer.status.id
        command = self._keeper_command(run_id, writer.lock)
        log = os.open(self.store.run_dir(run_id) / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if self._hand_over(run_id, writer.lock, log):
                return
            popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
                pass_fds=[writer.lock],
            )  # fmt: skip
        finally:
            os.close(log)
        popen.returncode = 0  # it outlives us; nobody here waits for it

    def _take_up(self, run_id: str) -> Status | None:
        """The run's supervisor is dead: end the record truly, or give the run a new supervisor.

        Gives None where another command was quicker.
        """
        writer = self.store.writer(run_id)
        if writer is None:
            return None
        try:
            if writer.status.phase.is_terminal:
                return writer.status
            plan, run_dir = Plan.from_json(self.store.plan(run_id)), self.store.run_dir(run_id)
            if not self._settle(Supervisor(writer, plan, run_dir, self._ground(plan, run_dir))):
                writer.append("adopted", self._until_when_observed(run_id))
                self._start_keeper(writer)
            return self.store.status(run_id)
        finally:
            writer.close()

    def _wake_keeper(self, run_id: str) -> bool:
        """Signal the run's supervisor; gives whether there was one to signal."""
        pid = keeper_pid(self.store.run_dir(run_id))
        return pid is not None and process.send(pid, signal.SIGINT)
