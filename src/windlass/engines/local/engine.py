"""The local engine's second door: submits plans to detached supervisors and keeps their records true."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.engines.base import POLL_SECONDS, Engine, reopen
from windlass.engines.local import waiting
from windlass.engines.local.keeper import keeper_pid
from windlass.engines.local.supervisor import Supervisor
from windlass.errors import EngineError, StoreError, UsageError
from windlass.plan.plan import Plan
from windlass.runs.record import Status
from windlass.runs.store import RunWriter, Store
from windlass.runs.wish import Wish, write_wish
from windlass.worker import process

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations

KEEPER = Path(__file__).with_name("__main__.py")
KEEPER_SECONDS = 1.0
"""How long a supervisor may take until it says who it is."""
TRAVELLING = ("__init__.py", "worker", "train")
"""What of the package goes with a job to interpreters that do not have it."""


class LocalEngine(Engine):
    """Runs on this machine."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock

    def submit(self, plan: Plan) -> Status:
        """Write the record and start the supervisor, which inherits the run's lock: a run is never without a keeper.

        Raises PlanError if the plan is blocked, EngineError if no process can be started, StoreError if the record
        cannot be written.
        """
        plan.require_runnable()
        self._lay_out_travel()
        writer = self.store.create(
            plan.run_id, name=plan.name, target=plan.target, output_dir=plan.output_dir, plan=plan.to_text(),
            time=self._clock(),
        )  # fmt: skip
        try:
            self._start_keeper(writer)
        except OSError as error:
            writer.close()
            self.store.delete(plan.run_id)
            raise EngineError(f"no supervisor could be started ({error})", "see: windlass doctor") from error
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
        writer = self.store.writer(run_id)
        if writer is None:
            raise UsageError(f"{run_id} has not ended: it is {self.store.status(run_id).phase}",
                             f"windlass logs -f {run_id}")  # fmt: skip
        try:
            self._lay_out_travel()
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

    def delete(self, run_id: str) -> None:
        """Remove an ended run. Raises UsageError while it goes on."""
        if not self.status(run_id).phase.is_terminal:
            raise UsageError(f"{run_id} has not ended", f"windlass stop {run_id}, then remove it")
        self.store.delete(run_id)

    def observe(self, run_id: str) -> Observations:
        """All that can be seen of a run. Raises NoSuchRun."""
        from windlass.engines.local.observe import observe

        return observe(self.store, self.status(run_id))

    # -- the keeper ---------------------------------------------------------------------------------------------------

    def _start_keeper(self, writer: RunWriter) -> None:
        """A process of its own session, so that neither a closed terminal nor Ctrl-C reaches it."""
        run_id = writer.status.id
        # -I -S: it needs nothing but the standard library and this package, and starts in half the time.
        command = [sys.executable, "-I", "-S", str(KEEPER), str(self.store.home), run_id, str(writer.lock)]
        log = os.open(self.store.run_dir(run_id) / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if waiting.hand_over(self.store.home, run_id, writer.lock, log):
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
            plan = Plan.from_json(self.store.plan(run_id))
            if not Supervisor(writer, plan, self.store.run_dir(run_id)).settle():
                writer.append("adopted")
                self._start_keeper(writer)
            return self.store.status(run_id)
        finally:
            writer.close()

    def _wake_keeper(self, run_id: str) -> bool:
        """Signal the run's supervisor; gives whether there was one to signal."""
        pid = keeper_pid(self.store.run_dir(run_id))
        return pid is not None and process.send(pid, signal.SIGINT)

    def _lay_out_travel(self) -> None:
        """The folder that is put on PYTHONPATH for interpreters that do not have this package."""
        package = Path(__file__).parents[2]
        folder = self.store.home / "travel" / "windlass"
        try:
            if folder.is_symlink() or not all((folder / part).exists() for part in TRAVELLING):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
                for part in TRAVELLING:
                    with contextlib.suppress(FileExistsError):
                        (folder / part).symlink_to(package / part)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made ({error.strerror})", "see: windlass doctor") from error
