"""An engine whose runs are kept by detached supervisors: submits plans to them, and keeps their records true."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.engines.base import POLL_SECONDS, Engine, reopen
from windlass.engines.keeping import crash
from windlass.engines.keeping.ground import Ground
from windlass.engines.keeping.keeper import keeper_pid
from windlass.engines.keeping.supervisor import Supervisor
from windlass.errors import EngineError, StoreError, StoreFull, UsageError, WindlassError
from windlass.plan.plan import Plan
from windlass.runs.machine import VARIABLE
from windlass.runs.record import Json, Phase, Status
from windlass.runs.store import RunWriter, Store
from windlass.runs.wish import Wish, read_wish, write_wish
from windlass.worker import process

KEEPER_SECONDS = 1.0
"""How long a supervisor may take until it says who it is."""
LOOK_AGAIN_SECONDS = 5.0
"""Between two looks at a target, of a command that follows a run which this machine cannot supervise now."""
LEAVE_SECONDS = 30.0
"""How long one may take to end once it has written the end of its run."""


class KeptEngine(Engine):
    """Runs that a process of this machine keeps, wherever they take place."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self._later: dict[str, tuple[float, Json | None]] = {}
        """Runs for which no supervisor can be started now: until when their target is not asked again (by
        `time.monotonic`), and what is seen of each meanwhile."""

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

    def _held_elsewhere(self, ground: Ground) -> str:
        """Which other supervisor holds the run, where that can be seen at a glance; empty for none."""
        return ""

    def _look_after(self, status: Status) -> Status:
        """Do what is left to do for a run that has ended, and give its status with what is seen of it now."""
        return status

    def _end_leftovers(self, run_id: str, *, now: bool) -> None:
        """End what of a run still works though the record says that it has ended. Raises EngineError."""

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
            left = self._left_by_failed(plan)
            writer.close()
            self.store.delete(plan.run_id)
            if isinstance(error, OSError):
                hint = "; ".join(part for part in (left, "see: windlass doctor") if part)
                raise EngineError(f"no supervisor could be started ({error})", hint) from error
            if left and isinstance(error, WindlassError):
                error.hint = "; ".join(part for part in (error.hint, left) if part)
            raise
        writer.close()
        return writer.status

    def _left_by_failed(self, plan: Plan) -> str:
        """Remove what a submission that failed has made; gives what could not be removed, and how to; mostly empty."""
        try:
            self._undo(plan)
        except WindlassError as error:
            return f"objects of {plan.run_id} may be left, which could not be removed ({error.message}): {error.hint}"
        return ""

    def status(self, run_id: str) -> Status:
        """The status, true now; of a run that another machine keeps, as recorded. Raises NoSuchRun."""
        give_up = time.monotonic() + KEEPER_SECONDS
        while True:
            status = self.store.status(run_id)
            if self.store.host_elsewhere(status) is not None:
                return status
            if status.phase.is_terminal:
                return self._look_after(status)
            if not self.store.is_held(run_id):
                try:
                    taken_up = self._take_up(run_id)
                except StoreFull as error:
                    raise StoreFull(f"{error.message}: {_recorded(status, self._clock())}", error.hint) from error
                if taken_up is not None:
                    return taken_up
            # Held, but by a keeper? It may be another command that is just bringing the record to the truth.
            if keeper_pid(self.store.run_dir(run_id)) is not None or time.monotonic() >= give_up:
                return status
            time.sleep(POLL_SECONDS)

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Ask the run to end; a supervisor on another machine reads that from the shared home. Raises NoSuchRun."""
        phase = self.store.status(run_id).phase
        if phase.is_terminal:
            # Of a run that is lost the record may be wrong, and an error is better than to say nothing.
            with contextlib.suppress(*(() if phase is Phase.LOST else (WindlassError,))):
                self._end_leftovers(run_id, now=now)
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
        self._require_here(self.status(run_id))  # one whose supervisor died may not have ended
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
            crash.move_away(run_dir, writer.status.last_seq)
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
        status = self.status(run_id)
        self._require_here(status)
        if not status.phase.is_terminal:
            raise UsageError(f"{run_id} has not ended", f"windlass stop {run_id}, then remove it")
        writer = self._writer_of_ended(run_id)  # its supervisor may still be cleaning up
        try:
            self._clean_up(Plan.from_json(self.store.plan(run_id)))
            self.store.delete(run_id)
        finally:
            if writer is not None:
                writer.close()

    def _require_here(self, status: Status) -> None:
        """Raise UsageError for a run that has not ended and is kept by another machine."""
        host = self.store.host_elsewhere(status)
        if host is not None and not status.phase.is_terminal:
            raise UsageError(f"{status.id} has not ended, and is kept by {host}: it is {status.phase}",
                             f"call this on {host}; where that machine is gone for ever: "
                             f"{VARIABLE}={host} windlass status {status.id}")  # fmt: skip

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
            until, condition = self._later.get(run_id, (0.0, None))
            if time.monotonic() < until and read_wish(self.store.run_dir(run_id)) is None:
                return replace(writer.status, condition=condition or writer.status.condition)
            plan, run_dir = Plan.from_json(self.store.plan(run_id)), self.store.run_dir(run_id)
            try:
                ground = self._ground(plan, run_dir)
            except (EngineError, UsageError) as error:  # the record is not to be hidden by a login that is gone
                return self._seen(writer.status, "LoginFailed", f"no supervisor can be started: {error.message}")
            if holder := self._held_elsewhere(ground):
                return self._seen(writer.status, "SupervisedElsewhere", f"supervised by {holder}")
            supervisor = Supervisor(writer, plan, run_dir, ground)
            if not self._settle(supervisor):
                self._follow_up(writer, supervisor)
            return self.store.status(run_id)
        finally:
            writer.close()

    def _follow_up(self, writer: RunWriter, supervisor: Supervisor) -> None:
        """Start the next supervisor, unless the ones before it got nothing done and the last was only just started."""
        if (pause := supervisor.pause_seconds()) > 0:
            self._later[writer.status.id] = (time.monotonic() + min(pause, 1.0), None)
            return
        run_dir = self.store.run_dir(writer.status.id)
        crashed = crash.read(run_dir)
        crash_data = {} if crashed is None else {"crash": crashed.summary, "crashed_at": crashed.at}
        writer.note("adopted", {**crash_data, **self._until_when_observed(writer.status.id)})
        crash.move_away(run_dir, writer.status.last_seq)
        self._start_keeper(writer)

    def _seen(self, status: Status, kind: str, message: str) -> Status:
        """A status with a condition that is seen now and is not in the record, kept for some seconds."""
        condition = {"type": kind, "message": message, "since": self._clock()}
        self._later[status.id] = (time.monotonic() + LOOK_AGAIN_SECONDS, condition)
        return replace(status, condition=condition)

    def _wake_keeper(self, run_id: str) -> bool:
        """Signal the run's supervisor; gives whether there was one to signal."""
        pid = keeper_pid(self.store.run_dir(run_id))
        return pid is not None and process.send(pid, signal.SIGINT)


def _recorded(status: Status, now: float) -> str:
    """What the record has of a run whose supervisor is gone, while nothing can be added to it."""
    since = max(0.0, now - status.phase_since)
    return f"the supervisor of {status.id} is gone; the last that was recorded is '{status.phase}', {since:.0f} s ago"
