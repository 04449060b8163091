"""Engine whose runs have supervisors: starts these, and settles the records of runs whose supervisor has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
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
from windlass.supervise.process import supervisor_pid, tell_end
from windlass.worker import process

if TYPE_CHECKING:
    from windlass.supervise.backend import Backend
    from windlass.supervise.supervisor import Supervisor

SUPERVISOR_SECONDS: Final = 1.0
"""How long a supervisor may take until it has written its pid file."""
LOOK_AGAIN_SECONDS: Final = 5.0
"""Between two polls of a target, by a command that follows a run which this machine cannot supervise now."""
LEAVE_SECONDS: Final = 30.0
"""How long a supervisor may take to end once it has written the end of its run."""
PROGRAM: Final = (
    "import sys; from importlib import import_module; from operator import attrgetter; "
    "sys.path.insert(0, sys.argv[1]); from windlass.supervise.process import main; "
    "module, _, name = sys.argv[2].partition(':'); "
    "sys.exit(main(sys.argv[3:], attrgetter(name)(import_module(module))))"
)
"""The program of a supervisor in an interpreter that may know nothing of Windlass: see `supervisor_program`."""
_STARTED: Final[set[int]] = set()
"""Pids of the supervisors that this process has started, until it has collected them."""


def supervisor_program(make_backend: str, *options: str) -> tuple[str, ...]:
    """The words that start a supervisor in an interpreter with these options, before home, run id and lock descriptor.

    `make_backend` is `package.module:function`, which makes the backend of a run from its plan and its folder.
    """
    return *options, "-c", PROGRAM, str(Path(__file__).absolute().parents[2]), make_backend


class SupervisedEngine(Engine):
    """Runs that a supervisor on this machine supervises, wherever their nodes are."""

    _supervisor: ClassVar[tuple[str, ...]]
    """The program of a supervisor, with the interpreter's options before it."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self._clock = clock
        self._later: dict[str, tuple[float, ConditionChanged | None]] = {}
        """Runs for which no supervisor can be started now: until when their target is not tried again (by
        `time.monotonic`), and the condition of each meanwhile."""

    # -- what an engine adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _backend(self, plan: Plan, run_dir: Path) -> Backend:
        """The target of a run. Raises EngineError, UsageError."""

    def _supervised_by(self, plan: Plan) -> str:
        """As `Status.supervisor`: empty for a process of this machine."""
        return ""

    def _now(self, plan: Plan) -> float:
        """When a run begins, by the clock of its supervisor as far as that is known. Raises EngineError."""
        return self._clock()

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        """Make what all attempts share, and what can be made by now of the first. Raises EngineError, StoreError."""

    def _after_end(self, status: Status) -> Status:
        """Finish the cleanup of a run that has ended, and return its status with its present condition."""
        return status

    def _end_leftovers(self, run_id: str, *, now: bool) -> None:
        """End processes or pods of a run that is recorded as ended. Raises EngineError."""

    # -- the engine ---------------------------------------------------------------------------------------------------

    def submit(self, plan: Plan) -> Status:
        """Write the record and start the supervisor, which inherits the run's lock: a run always has a supervisor.

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
        hint = ""
        try:
            with closing(self._backend(plan, self.store.run_dir(plan.run_id))) as backend:
                hint = backend.removal_hint
                backend.remove()
        except WindlassError as error:
            return f"objects of {plan.run_id} may be left, which could not be removed ({error.message}): {hint}"
        return ""

    def status(self, run_id: str) -> Status:
        """The status, true now; as recorded where another machine supervises the run, or the record cannot be written.

        Raises NoSuchRun.
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
                    raise StoreFull(f"{error.message}: {_recorded(status, self._clock())}", error.hint) from error
                if settled is not None:
                    return settled
            # Held, but by a supervisor? It may be another command that is just settling the record.
            if self._is_supervised(run_id) or time.monotonic() >= give_up:
                return status
            time.sleep(POLL_SECONDS)

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Request the end of the run; a supervisor on another machine reads that from the shared home.

        Raises NoSuchRun.
        """
        phase = self.store.status(run_id).phase
        if phase.is_terminal:
            # The record of a lost run may be wrong, so that a failure to end its pods must be reported.
            with contextlib.suppress(*(() if phase is Phase.LOST else (WindlassError,))):
                self._end_leftovers(run_id, now=now)
            return
        run_dir = self.store.run_dir(run_id)
        try:
            write_stop_request(run_dir, StopRequest(now=now))  # first: a run without a supervisor is not restarted then
        except OSError as error:
            # A full disk must not keep a run alive: the signal alone is a request, though one with a grace period.
            if not self._wake_supervisor(run_id):
                raise StoreError(
                    f"{run_dir} cannot be written ({error.strerror})", "is there space, and the right to write?"
                ) from error
        else:
            self._wake_supervisor(run_id)
            self.status(run_id)

    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        """Give an ended run new attempts. Raises NoSuchRun, UsageError, PlanError, EngineError, StoreError."""
        if plan is not None:
            plan.require_runnable()
        self._require_here(self.status(run_id))  # one whose supervisor died may not have ended
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
            if (log := run_dir / "supervisor.log").exists():  # an earlier failure is no reason not to try again
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
        """The writer of an ended run, once its supervisor has released it; None where it is not ended."""
        give_up = time.monotonic() + LEAVE_SECONDS
        while True:
            writer = self.store.writer(run_id)
            if writer is not None or time.monotonic() >= give_up:
                return writer
            if not self.store.status(run_id).phase.is_terminal:
                return None
            time.sleep(POLL_SECONDS)

    def delete(self, run_id: str) -> None:
        """Remove an ended run. Raises UsageError while it is active."""
        status = self.status(run_id)
        self._require_here(status)
        if not status.phase.is_terminal:
            raise UsageError(f"{run_id} has not ended", f"windlass stop {run_id}, then remove it")
        writer = self._writer_of_ended(run_id)  # its supervisor may still be cleaning up
        try:
            with closing(self._backend_of(run_id)) as backend:
                backend.remove()
            self.store.delete(run_id)
        finally:
            if writer is not None:
                writer.close()

    def _backend_of(self, run_id: str) -> Backend:
        """The target of a recorded run. Raises EngineError, UsageError."""
        return self._backend(self.store.plan(run_id), self.store.run_dir(run_id))

    def _require_here(self, status: Status) -> None:
        """Raise UsageError for a run that has not ended and is supervised on another machine."""
        host = self.store.host_elsewhere(status)
        if host is not None and not status.phase.is_terminal:
            raise UsageError(
                f"{status.id} has not ended, and is supervised on {host}: it is {status.phase}",
                f"call this on {host}; where that machine is gone for ever: "
                f"{VARIABLE}={host} windlass status {status.id}",
            )

    # -- the supervisor -----------------------------------------------------------------------------------------------

    def _start_supervisor(self, writer: RunWriter) -> None:
        """A process of its own session, so that neither a closed terminal nor Ctrl-C reaches it. Raises OSError."""
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
        popen.returncode = 0  # it may outlive this process, which does not wait for it
        _STARTED.add(popen.pid)

    def _is_supervised(self, run_id: str) -> bool:
        """Whether a supervisor holds the run, and not another command."""
        return supervisor_pid(self.store.run_dir(run_id)) is not None

    def _wake_supervisor(self, run_id: str) -> bool:
        """Signal the run's supervisor; gives whether there was one to signal."""
        pid = supervisor_pid(self.store.run_dir(run_id))
        return pid is not None and process.send(pid, signal.SIGINT)

    def _take_over(self, run_id: str) -> Status | None:
        """The run's supervisor has ended: settle the record, or start a new supervisor. Returns None where another
        command has done so.
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
            # Not at the top: a command that submits a run needs neither.
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
                tell_end(self.store, ended)

    def _follow_up(self, writer: RunWriter, supervisor: Supervisor) -> None:
        """Start the next supervisor, unless those before it made no progress and the last was started just now."""
        from windlass.supervise import adoption

        run_id = writer.status.id
        if (pause := adoption.pause_seconds(supervisor)) > 0:
            self._later[run_id] = (time.monotonic() + min(pause, 1.0), None)
            return
        run_dir = self.store.run_dir(run_id)
        crashed = crash.read(run_dir)
        data: dict[str, Any] = {} if crashed is None else {"crash": crashed.summary, "crashed_at": crashed.at}
        if supervisor.backend.outlives_supervisor:  # its nodes went on, or ended, since then
            data["observed_until"] = adoption.observed_until(writer)
        writer.note(SupervisorRestarted(**data))
        crash.move_away(run_dir, writer.status.last_seq)
        self._start_supervisor(writer)

    def _seen(self, status: Status, kind: str, message: str) -> Status:
        """A status with a condition that holds now and is not in the record, kept for some seconds."""
        condition = ConditionChanged(kind, message, self._clock())
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
    """Collect the supervisors that have ended: a program that starts many runs would keep them as zombies."""
    for pid in tuple(_STARTED):
        with contextlib.suppress(ChildProcessError):  # another part has collected it, or this is a fork of its parent
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _STARTED.discard(pid)


def _recorded(status: Status, now: float) -> str:
    """The recorded status of a run whose supervisor has ended, while the record cannot be written."""
    since = max(0.0, now - status.times.phase_since)
    return f"the supervisor of {status.id} is gone; the last that was recorded is '{status.phase}', {since:.0f} s ago"
