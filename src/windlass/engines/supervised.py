"""Base class of engines whose runs have supervisors: starts supervisors, and handles runs whose supervisor has
ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from windlass.engines.base import POLL_SECONDS, Engine
from windlass.engines.resuming import reopen, require_resumable
from windlass.errors import EngineError, StoreError, StoreFull, UsageError, WindlassError
from windlass.plan.environment import outside_of_runs
from windlass.plan.plan import Plan
from windlass.runs import crash
from windlass.runs.events import ConditionChanged, SupervisorRestarted
from windlass.runs.machine import VARIABLE, user_name
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.stop_request import StopRequest, read_stop_request, write_stop_request
from windlass.runs.store import RunWriter, Store
from windlass.supervise.process import notify_end, supervisor_pid
from windlass.worker import process

if TYPE_CHECKING:
    from windlass.supervise.backend import Backend
    from windlass.supervise.supervisor import Supervisor

SUPERVISOR_SECONDS: Final = 1.0
"""Seconds that a new supervisor may take to write its pid file."""
LOOK_AGAIN_SECONDS: Final = 5.0
"""Seconds between two polls of a target, for a command that follows a run which this machine cannot supervise now."""
LEAVE_SECONDS: Final = 30.0
"""Seconds that a supervisor may take to exit after it has recorded the end of its run."""
PROGRAM: Final = (
    "import sys; from importlib import import_module; from operator import attrgetter; "
    "sys.path.insert(0, sys.argv[1]); from windlass.supervise.process import main; "
    "module, _, name = sys.argv[2].partition(':'); "
    "sys.exit(main(sys.argv[3:], attrgetter(name)(import_module(module))))"
)
"""Python program of a supervisor, for interpreters in which Windlass may not be installed; see `supervisor_program`."""
_STARTED: Final[set[int]] = set()
"""Pids of supervisors that this process has started and not yet waited for."""


def supervisor_program(make_backend: str, *options: str) -> tuple[str, ...]:
    """Returns the interpreter's arguments for a supervisor, which are followed by home, run id and lock descriptor.

    `make_backend` is `package.module:function`, a function from plan and run folder to the backend of the run.
    `options` are options of the interpreter.
    """
    return *options, "-c", PROGRAM, str(Path(__file__).absolute().parents[2]), make_backend


class SupervisedEngine(Engine):
    """Runs with a supervisor on this machine, wherever their nodes are."""

    _supervisor: ClassVar[tuple[str, ...]]
    """Interpreter options and program of a supervisor."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._later: dict[str, tuple[float, ConditionChanged | None]] = {}
        """Runs for which no supervisor can be started now: the monotonic time of the next try, and the run's condition
        until then."""

    # -- what an engine adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _backend(self, plan: Plan, run_dir: Path) -> Backend:
        """Returns the backend of a run. Raises EngineError, UsageError."""

    def _supervised_by(self, plan: Plan) -> str:
        """Returns the value of `Status.supervisor`; empty for a supervisor process on this machine."""
        return ""

    def _now(self, plan: Plan) -> float:
        """Returns the current Unix time for the start of a run, if possible by its supervisor's clock. Raises
        EngineError.
        """
        return time.time()

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        """Creates objects and files that all attempts need, before the supervisor starts. Raises EngineError,
        StoreError.
        """

    def _after_end(self, status: Status) -> Status:
        """Finishes the cleanup of an ended run, and returns its status with its current condition."""
        return status

    def _end_leftovers(self, run_id: str, *, now: bool) -> None:
        """Ends processes or pods of a run that is recorded as ended. Raises EngineError."""

    # -- the engine ---------------------------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> Status:
        """Writes the record and starts the supervisor, which inherits the run's lock, so that no other process can take
        over.

        Raises PlanError if the plan is blocked, EngineError if the target refuses or no process can be started,
        StoreError if the record cannot be written.
        """
        plan.require_runnable()
        writer = self.store.create(
            plan.run_id,
            name=plan.name,
            target=plan.target,
            output_dir=plan.output_dir,
            plan=plan.to_text(),
            time=self._now(plan),
            restarts=plan.policy.max_restarts,
            user=user_name(),
            supervisor=self._supervised_by(plan),
            labels=plan.job.get("labels"),
        )
        try:
            self._prepare(plan, writer)
            self._start_supervisor(writer)
        except BaseException as error:
            with _uninterrupted():
                left = self._remove_failed(plan)
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

    def _remove_failed(self, plan: Plan) -> str:
        """Removes the objects of a failed submission; returns what could not be removed and how to do it, or ""."""
        hint = ""
        try:
            with closing(self._backend(plan, self.store.run_dir(plan.run_id))) as backend:
                hint = backend.removal_hint
                backend.remove()
        except WindlassError as error:
            return f"objects of {plan.run_id} may be left, which could not be removed ({error.message}): {hint}"
        return ""

    def status(self, run_id: str) -> Status:
        """Returns the current status; the recorded one if another machine supervises the run or the record is
        read-only.

        Raises NoSuchRun, StoreFull.
        """
        _collect_ended()
        give_up = time.monotonic() + SUPERVISOR_SECONDS
        while True:
            status = self.store.status(run_id)
            if self.store.is_read_only or self.store.host_elsewhere(status) is not None:
                return status
            if status.phase.is_terminal:
                return self._after_end(status)
            if not self.store.is_held(run_id):
                try:
                    settled = self._take_over(run_id)
                except StoreFull as error:
                    raise StoreFull(f"{error.message}: {_recorded(status, time.time())}", error.hint) from error
                if settled is not None:
                    return settled
            # The lock may be held by another command that is updating the record, instead of a supervisor.
            if self._is_supervised(run_id) or time.monotonic() >= give_up:
                return status
            time.sleep(POLL_SECONDS)

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Requests the end of the run. A supervisor on another machine reads the request from the shared home.

        Raises NoSuchRun, StoreError; for a lost run also EngineError.
        """
        phase = self.store.status(run_id).phase
        if phase.is_terminal:
            # The record of a lost run may be wrong, so that a failure to end its pods must be reported.
            with contextlib.suppress(*(() if phase is Phase.LOST else (WindlassError,))):
                self._end_leftovers(run_id, now=now)
            return
        run_dir = self.store.run_dir(run_id)
        try:
            # written first, so that a run without a supervisor is not restarted
            write_stop_request(run_dir, StopRequest(now=now))
        except OSError as error:
            # On a full disk, the signal alone requests the stop, with a grace period.
            if not self._wake_supervisor(run_id):
                raise StoreError(
                    f"{run_dir} cannot be written ({error.strerror})", "is there space, and the right to write?"
                ) from error
        else:
            self._wake_supervisor(run_id)
            self.status(run_id)

    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        """Starts new attempts of an ended run. Raises NoSuchRun, UsageError, PlanError, EngineError, StoreError."""
        if plan is not None:
            plan.require_runnable()
        self._require_here(self.status(run_id))  # `status` settles the record if the supervisor has died
        writer = self._writer_of_ended(run_id)
        if writer is None:
            if (phase := self.store.status(run_id).phase).is_terminal:
                raise UsageError(f"what {run_id} has left is still being cleaned up", "resume it again in a minute")
            raise UsageError(f"{run_id} has not ended: it is {phase}", f"windlass logs -f {run_id}")
        try:
            require_resumable(writer.status)
            self._prepare(plan or self.store.plan(run_id), writer)
            run_dir = self.store.run_dir(run_id)
            reopen(writer, run_dir, plan, checkpoint)
            # the log of an earlier supervisor's failure must not count for the new one
            if (log := run_dir / "supervisor.log").exists():
                log.replace(run_dir / f"supervisor-{len(writer.status.attempts)}.log")
            crash.move_away(run_dir, writer.status.last_seq)
            self._start_supervisor(writer)
        except OSError as error:
            hint = "the next windlass command starts it; see: windlass doctor"
            raise EngineError(f"no supervisor could be started ({error})", hint) from error
        finally:
            writer.close()
        return writer.status

    def _writer_of_ended(self, run_id: str) -> RunWriter | None:
        """Returns the writer of an ended run after its supervisor has released it; None if it is not
        released in time.
        """
        give_up = time.monotonic() + LEAVE_SECONDS
        while True:
            writer = self.store.writer(run_id)
            if writer is not None or time.monotonic() >= give_up:
                return writer
            if not self.store.status(run_id).phase.is_terminal:
                return None
            time.sleep(POLL_SECONDS)

    def delete(self, run_id: str) -> None:
        """Deletes an ended run with its objects. Raises UsageError while the run is active."""
        status = self.status(run_id)
        self._require_here(status)
        if not status.phase.is_terminal:
            raise UsageError(f"{run_id} has not ended", f"windlass stop {run_id}, then remove it")
        writer = self._writer_of_ended(run_id)  # the supervisor may still be cleaning up
        try:
            with closing(self._backend_of(run_id)) as backend:
                backend.remove()
            self.store.delete(run_id)
        finally:
            if writer is not None:
                writer.close()

    def _backend_of(self, run_id: str) -> Backend:
        """Returns the backend of a recorded run. Raises EngineError, UsageError."""
        return self._backend(self.store.plan(run_id), self.store.run_dir(run_id))

    def _require_here(self, status: Status) -> None:
        """Raises UsageError for a run that has not ended and is supervised on another machine."""
        host = self.store.host_elsewhere(status)
        if host is not None and not status.phase.is_terminal:
            raise UsageError(
                f"{status.id} has not ended, and is supervised on {host}: it is {status.phase}",
                f"call this on {host}; where that machine is gone for ever: "
                f"{VARIABLE}={host} windlass status {status.id}",
            )

    # -- the supervisor -----------------------------------------------------------------------------------------------

    def _start_supervisor(self, writer: RunWriter) -> None:
        """Starts a supervisor in a separate session, so that closing the terminal or Ctrl-C does not end it. Raises
        OSError.
        """
        _collect_ended()
        run_id = writer.status.id
        command = [sys.executable, *self._supervisor, str(self.store.home), run_id, str(writer.lock)]
        log = os.open(self.store.run_dir(run_id) / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                pass_fds=[writer.lock],
                env=outside_of_runs(os.environ),
            )
        finally:
            os.close(log)
        popen.returncode = 0  # The supervisor may outlive this process, which does not wait for it.
        _STARTED.add(popen.pid)

    def _is_supervised(self, run_id: str) -> bool:
        """Whether a supervisor holds the run, and not another command."""
        return supervisor_pid(self.store.run_dir(run_id)) is not None

    def _wake_supervisor(self, run_id: str) -> bool:
        """Signals the run's supervisor; returns whether there is one."""
        pid = supervisor_pid(self.store.run_dir(run_id))
        return pid is not None and process.send(pid, signal.SIGINT)

    def _take_over(self, run_id: str) -> Status | None:
        """Updates the record of a run whose supervisor has ended, or starts a new supervisor.

        Returns the status; None if another command has taken over the run.
        """
        writer = self.store.writer(run_id)
        if writer is None:
            return None
        run_dir = self.store.run_dir(run_id)
        ended: Plan | None = None
        try:
            if writer.status.phase.is_terminal:
                return writer.status
            until, condition = self._later.get(run_id, (0.0, None))
            if time.monotonic() < until and read_stop_request(run_dir) is None:
                return writer.status.with_condition(condition or writer.status.supervision.condition)
            plan = self.store.plan(run_id)
            try:
                backend = self._backend(plan, run_dir)
            except (EngineError, UsageError) as error:  # an expired login must not hide the record
                return self._seen(writer.status, "LoginFailed", f"no supervisor can be started: {error.message}")
            # Imported late: a command that submits a run needs neither.
            from windlass.supervise import adoption
            from windlass.supervise.supervisor import Supervisor

            with closing(backend):
                if holder := backend.held_elsewhere():
                    return self._seen(writer.status, "SupervisedElsewhere", f"supervised by {holder}")
                supervisor = Supervisor(writer, plan, run_dir, backend)
                if not adoption.settle(supervisor):
                    self._follow_up(writer, supervisor)
                ended = plan if writer.status.phase.is_terminal else None
            return self.store.status(run_id)
        finally:
            writer.close()
            if ended is not None:
                notify_end(self.store, ended)

    def _follow_up(self, writer: RunWriter, supervisor: Supervisor) -> None:
        """Starts the next supervisor, unless earlier ones made no progress and the last was started a moment ago."""
        from windlass.supervise import adoption

        run_id = writer.status.id
        if (pause := adoption.pause_seconds(supervisor)) > 0:
            self._later[run_id] = (time.monotonic() + min(pause, 1.0), None)
            return
        run_dir = self.store.run_dir(run_id)
        crashed = crash.read(run_dir)
        data: dict[str, Any] = {} if crashed is None else {"crash": crashed.summary, "crashed_at": crashed.at}
        if supervisor.backend.outlives_supervisor:  # the nodes have continued, or ended, since then
            data["observed_until"] = adoption.observed_until(writer)
        writer.note(SupervisorRestarted(**data))
        crash.move_away(run_dir, writer.status.last_seq)
        self._start_supervisor(writer)

    def _seen(self, status: Status, kind: str, message: str) -> Status:
        """Returns the status with a current condition that is not recorded; the condition is reused for some
        seconds.
        """
        condition = ConditionChanged(kind, message, time.time())
        self._later[status.id] = (time.monotonic() + LOOK_AGAIN_SECONDS, condition)
        return status.with_condition(condition)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C: the next command would resume a half-removed submission."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _collect_ended() -> None:
    """Waits for ended supervisors, which would remain as zombies in a program that starts many runs."""
    for pid in tuple(_STARTED):
        # another part of the program has waited for it, or this process is a fork of its parent
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _STARTED.discard(pid)


def _recorded(status: Status, now: float) -> str:
    """Describes the recorded status of a run whose supervisor has ended, for the error that the record cannot be
    written.
    """
    since = max(0.0, now - status.times.phase_since)
    return f"the supervisor of {status.id} is gone; the last that was recorded is '{status.phase}', {since:.0f} s ago"
