"""SageMaker in memory, which can drop responses, and supervisors that are killed while they wait for one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.sagemaker.planning import plan_here

from windlass.engines.sagemaker.backend import SageMakerBackend
from windlass.engines.sagemaker.engine import SageMakerLocalEngine
from windlass.engines.sagemaker.service import (
    COMPLETED,
    ENDED,
    IN_PROGRESS,
    IN_USE,
    STOPPED,
    STOPPING,
    VALIDATION,
    Absent,
    Description,
    LogPage,
    NotLoggedIn,
    Refused,
    Request,
    Unavailable,
)
from windlass.plan.plan import Plan
from windlass.runs.clock import Clock
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.stop_request import StopRequest, write_stop_request
from windlass.runs.store import RunWriter, Store
from windlass.spec.job import Job
from windlass.supervise.recorder import Recorder
from windlass.supervise.supervisor import Supervisor

LIMIT_SECONDS = 100_000.0


class Killed(BaseException):
    """SIGKILL of the process that waits for a response."""


class World:
    """The training jobs of an account. Time advances only while supervisors wait."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.lines: list[str] = []
        """Log lines of the host of every job."""
        self.trains_for = 8
        """Number of descriptions of a job until it has completed."""
        self.seconds = time.time()
        self.fault: Callable[[Connection, str, int], str] = lambda connection, operation, number: ""
        """Fault of the n-th call of an operation: `lost` (carried out, no response), `unsent` (not carried out, no
        response), `denied`, `expired` (carried out, no response, and the login expires before botocore's next try), or
        empty for a normal response."""
        self.lock = threading.RLock()

    def live(self) -> list[str]:
        """Returns the jobs that have not ended."""
        return [name for name, job in self.jobs.items() if job["TrainingJobStatus"] not in ENDED]

    def going(self) -> list[str]:
        """Returns the jobs for which no stop was requested."""
        return [name for name, job in self.jobs.items() if job["TrainingJobStatus"] == IN_PROGRESS]

    def create(self, request: Request) -> None:
        if request["TrainingJobName"] in self.jobs:
            raise Refused(IN_USE, "there is one of this name")
        assert not self.live(), f"{request['TrainingJobName']} beside {self.live()}"
        self.jobs[request["TrainingJobName"]] = {
            **request,
            "TrainingJobStatus": IN_PROGRESS,
            "SecondaryStatus": "Training",
            "seen": 0,
        }

    def describe(self, name: str) -> Description:
        if (job := self.jobs.get(name)) is None:
            raise Absent(VALIDATION, "Requested resource not found.")
        job["seen"] += 1
        if job["TrainingJobStatus"] == STOPPING:
            job |= {"TrainingJobStatus": STOPPED, "SecondaryStatus": STOPPED}
        elif job["seen"] > self.trains_for and job["TrainingJobStatus"] == IN_PROGRESS:
            job |= {"TrainingJobStatus": COMPLETED, "SecondaryStatus": COMPLETED}
        return {field: value for field, value in job.items() if field != "seen"}

    def stop(self, name: str) -> None:
        if self.jobs.get(name, {}).get("TrainingJobStatus") not in (IN_PROGRESS, STOPPING):
            raise Refused(VALIDATION, "The request was rejected because the training job is not there, or has ended")
        self.jobs[name] |= {"TrainingJobStatus": STOPPING, "SecondaryStatus": STOPPING}


class Connection:
    """The service as one process calls it."""

    poll_seconds = 0.001
    logs_are_prompt = True
    settle_seconds = 0.0

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_killed = False

    def _call(self, operation: str, carry_out: Callable[[], Any]) -> Any:
        with self.world.lock:
            if self.is_killed:
                raise Unavailable("this process was killed")
            self.world.calls[operation] += 1
            fault = self.world.fault(self, operation, self.world.calls[operation])
            if fault == "denied":
                raise NotLoggedIn("not authorized to perform")
            found, refused = None, None
            if fault != "unsent":
                try:
                    found = carry_out()
                except Refused as error:
                    refused = error
            if self.is_killed and threading.current_thread() is threading.main_thread():
                raise Killed
            if fault == "expired":
                expired = NotLoggedIn("there are no credentials for AWS")
                expired.is_repeated = True
                raise expired
            if fault:
                raise Unavailable(f"{operation} has no answer")
            if refused is not None:
                raise refused
            return found

    def create(self, request: Request) -> None:
        self._call("create", lambda: self.world.create(request))

    def describe(self, name: str) -> Description:
        return dict(self._call("describe", lambda: self.world.describe(name)))

    def stop(self, name: str) -> None:
        self._call("stop", lambda: self.world.stop(name))

    def delete(self, name: str) -> None: ...

    def log_streams(self, name: str, *, is_over: bool = False) -> list[str]:
        return [f"{name}/algo-1-1732400000"] if self.world.lines else []

    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        new = self.world.lines[int(token or 0) :]
        return LogPage([(1732400000000, line) for line in new], str(len(self.world.lines)))

    def close(self) -> None: ...


class FastClock(Clock):
    """A clock that advances as fast as an attempt's thread can poll the service, until the process is killed."""

    def __init__(self, connection: Connection, until: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._connection, self._until, self._num_waits = connection, until, 0

    def time(self) -> float:
        return self._connection.world.seconds

    def monotonic(self) -> float:
        return self._connection.world.seconds

    def wait(self, seconds: float) -> None:
        self._num_waits += 1
        assert self._num_waits < 20_000, "the supervisor waits for something that never happens"
        if self._connection.is_killed or self._until():
            self._connection.is_killed = True
            raise Killed
        self._connection.world.seconds += seconds
        time.sleep(0.001)

    def wake(self) -> None: ...


class Lab(SageMakerLocalEngine):
    """An engine whose commands call the service in memory, and whose supervisors run in this process."""

    def __init__(self, store: Store, world: World) -> None:
        super().__init__(store)
        self.world = world
        self.num_started = 0

    def _backend(self, plan: Plan, run_dir: Path) -> SageMakerBackend:
        return SageMakerBackend(plan, run_dir, Connection(self.world))

    def _start_supervisor(self, writer: RunWriter) -> None:
        """Counts the start; tests call `supervise` and `finish` instead."""
        self.num_started += 1

    def finish(self, run_id: str) -> None:
        """Cleans up an ended run as its supervisor does."""
        writer = self.store.writer(run_id)
        assert writer is not None
        with contextlib.closing(writer):
            self._backend_of(run_id).clean_up(Recorder(writer))

    def begin(self, base: Path, run_id: str, timeout: float | None = None) -> str:
        """Submits a run and returns its id."""
        (base / "train.py").touch()
        job = Job(name="digits", run="train.py", timeout=timeout)
        return self.submit(plan_here(job, base, self.store.home, run_id)).id

    def supervise(self, run_id: str, until: Callable[[], bool] = lambda: False) -> Status:
        """Runs one supervisor until it ends or is killed, and returns the status."""
        writer, run_dir = self.store.writer(run_id), self.store.run_dir(run_id)
        assert writer is not None
        connection = Connection(self.world)
        plan = self.store.plan(run_id)
        backend = SageMakerBackend(plan, run_dir, connection)
        supervisor = Supervisor(writer, plan, run_dir, backend, FastClock(connection, until))
        try:
            supervisor.run()
        except Killed:
            pass
        finally:
            connection.is_killed = True
            if supervisor.monitor is not None:
                supervisor.monitor.attempt.close()
            writer.close()
        return self.store.status(run_id)

    def to_the_end(self, run_id: str) -> Status:
        """Runs supervisors until the run has ended, each after one that was killed."""
        for _ in range(20):
            if (status := self.supervise(run_id)).phase.is_terminal:
                return status
        raise AssertionError(f"{run_id} is {status.phase}")

    def ask_to_stop(self, run_id: str) -> None:
        """Requests a stop as `windlass stop` does for an active run."""
        write_stop_request(self.store.run_dir(run_id), StopRequest())

    def resumed(self, run_id: str) -> Phase | None:
        """Resumes the run and returns its final phase; None if it has succeeded already."""
        from windlass.errors import EngineError

        if self.store.status(run_id).phase is Phase.SUCCEEDED:
            return None
        for _ in range(10):
            with contextlib.suppress(EngineError):  # an earlier job is still stopping
                self.resume(run_id)
                break
        return self.to_the_end(run_id).phase
