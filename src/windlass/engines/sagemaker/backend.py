"""Backend of SageMaker: one training job for each attempt. Every step may be repeated: what exists is kept."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.engines import ports
from windlass.engines.sagemaker import layout, objects
from windlass.engines.sagemaker.attempt import JobAttempt, unavailable
from windlass.engines.sagemaker.connect import connect
from windlass.engines.sagemaker.request import numbered, own_channel
from windlass.engines.sagemaker.service import ENDED, IN_USE, Refused, Service, Unavailable
from windlass.engines.travel import planned_code
from windlass.errors import EngineError, WindlassError
from windlass.plan.compose import AttemptFacts, Rendezvous, compose
from windlass.plan.environment import consecutive_ports
from windlass.plan.plan import Plan
from windlass.runs.events import MODEL_AWAY, Warned
from windlass.supervise.backend import Backend, TargetUnavailable
from windlass.supervise.clock import Clock
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import pack

STARTED: Final = "started"
"""File in the folder of an attempt whose training job was created."""


class SageMakerBackend(Backend):
    """Training jobs of one run."""

    outlives_supervisor = True
    uploads_outputs = True

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        """Connects to the service where it is first used: the command that sends the code does not need it."""
        self._plan = plan
        self._run_dir = run_dir
        self._home = run_dir.parent.parent
        [self._where] = plan.requests("service")
        [self._body] = plan.requests("training-job")
        [self._model] = plan.requests("model")
        self._ahead: _Connecting | None = None
        self._attempt: JobAttempt | None = None
        self._fetching: _Fetching | None = None
        self._ports = contextlib.ExitStack()
        """Sockets that hold the ports of the attempt: hosts bind them only once they have imported what they run."""

    @classmethod
    def of_supervisor(cls, plan: Plan, run_dir: Path) -> SageMakerBackend:
        """One that connects to AWS while its supervisor still reads the record and sends what the job needs."""
        made = cls(plan, run_dir)
        if made._where["kind"] == "sagemaker":
            made._ahead = _Connecting(made._where)
        return made

    @functools.cached_property
    def service(self) -> Service:
        """Raises EngineError, UsageError."""
        made = self._ahead.result() if self._ahead is not None else None
        return made or connect(self._where, os.environ)

    def close(self) -> None:
        """See `Backend`."""
        self._ports.close()
        if "service" in vars(self):
            self.service.close()

    # -- attempts -----------------------------------------------------------------------------------------------------

    def send_code(self) -> None:
        """Store the code, unless the store has it. Raises EngineError, UsageError."""
        [code] = self._plan.requests("code")
        if not objects.is_there(code["address"], layout.ARCHIVE, code["bytes"], self._home):
            packed = planned_code(code["digest"], Path(code["folder"]))
            objects.put(code["address"], {layout.ARCHIVE: packed.data}, self._home)

    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> JobAttempt:
        """See `Backend`."""
        try:
            self._create(record, number, members, clock.time())
        except Unavailable as error:
            raise unavailable(error) from error
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / STARTED).touch()
        return self.adopt(folder, number, members, clock)

    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> JobAttempt:
        """See `Backend`."""
        name, specs = layout.job_name(self._plan.run_id, number), compose(self._plan.nodes, members)
        with contextlib.suppress(OSError):  # a supervisor that was killed may have created the job alone
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._attempt = JobAttempt(self.service, name, number, specs, folder, clock.wake)
        return self._attempt

    def is_started(self, folder: Path) -> bool:
        """See `Backend`. A supervisor may have been killed after the job was created."""
        if (folder / STARTED).exists():
            return True
        try:
            self.service.describe(layout.job_name(self._plan.run_id, _number(folder)))
        except EngineError:
            return False  # creating it again shows
        return True

    def _create(self, record: Recorder, number: int, members: Sequence[int], now: float) -> None:
        """Create the training job of an attempt, unless it is there. Raises EngineError."""
        limit, left = self._plan.policy["timeout_seconds"], None
        if limit is not None:
            left = limit - record.status.limited_seconds(now)
        body = numbered(self._body, self._plan.run_id, number, left)
        hosts = tuple(layout.host(place) for place in range(len(members)))
        address = own_channel(body)
        self._ports.close()
        port = self._meeting_port(address)
        facts = AttemptFacts(
            number=number,
            folder=f"{layout.WORK}/attempt",
            rendezvous=Rendezvous(hosts[0], port, hosts, self._rank_ports(len(hosts), number)),
            since=record.status.created_at,
            held_port=port if self._holds_ports and not self._binds_by_itself else None,
            continuation=record.history.continuation(record.status),
        )
        specs = compose(self._plan.nodes, members, facts)
        self.send_code()
        objects.put(address, objects.starters(pack(number, dict(enumerate(specs)))), self._home)
        try:
            self.service.create(body)
        except Refused as error:
            if error.code != IN_USE:
                raise
            self._require_ours(body["TrainingJobName"])

    def _require_ours(self, name: str) -> None:
        """Raise EngineError for a training job of this name that is not of this run."""
        there = self.service.describe(name)
        if there.get("Environment", {}).get(layout.RUN_VARIABLE) != self._plan.run_id:
            raise EngineError(f"training job {name} exists already, and is not of this run", "run again")

    @property
    def _holds_ports(self) -> bool:
        """Whether hosts share the ports of this machine."""
        return bool(self._where["kind"] != "sagemaker")

    @property
    def _binds_by_itself(self) -> bool:
        """Whether the program may bind MASTER_PORT without SO_REUSEADDR, which a socket of ours would prevent."""
        return self._plan.nodes.launcher == "plain"

    def _meeting_port(self, address: str) -> int:
        """Where the ranks of the attempt with this address meet."""
        if not self._holds_ports:
            return layout.meeting_port(address)
        if not self._binds_by_itself:
            return self._held_port()
        with ports.reserve(None) as found:
            return int(found.getsockname()[1])

    def _rank_ports(self, num_nodes: int, number: int) -> tuple[int, ...]:
        """A port for each rank, where the launcher needs them."""
        found = consecutive_ports(self._plan.nodes.launcher, num_nodes, self._plan.procs_per_node, number)
        return tuple(self._held_port() for _ in found) if self._holds_ports else found

    def _held_port(self) -> int:
        """A port that nothing else gets until the next attempt, or the end of this process."""
        return int(self._ports.enter_context(ports.reserve(None)).getsockname()[1])

    def trouble(self) -> TargetUnavailable | None:
        """See `Backend`."""
        return self._attempt.trouble if self._attempt is not None else None

    def lives(self) -> bool:
        """See `Backend`."""
        try:
            return bool(self.live_jobs())
        except EngineError:
            return True

    def live_jobs(self) -> list[str]:
        """Training jobs of the run that have not ended. Raises EngineError."""
        found = []
        for name in self._jobs():
            with contextlib.suppress(Refused):
                if self.service.describe(name)["TrainingJobStatus"] not in ENDED:
                    found.append(name)
        return found

    def _jobs(self) -> list[str]:
        """The training job of each attempt that has a folder."""
        numbers = sorted(_number(folder) for folder in self._run_dir.glob("attempt-*"))
        return [layout.job_name(self._plan.run_id, number) for number in numbers]

    # -- the end ------------------------------------------------------------------------------------------------------

    def upload(self, record: Recorder, clock: Clock) -> bool:
        """See `Backend`: the service has stored the model; this brings it to the run's folder."""
        if self._fetching is None:
            address = objects.model_address(self._model, self._plan.run_id, len(record.status.attempts))
            into = Path(self._model["path"])
            self._fetching = _Fetching(lambda: objects.fetch_model(f"{address}/", into, self._home), clock.wake)
        return self._fetching.is_done(record)

    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        """See `Backend`: no training job of an ended run may go on."""
        try:
            self.end_jobs()
        except EngineError as error:
            record.note(Warned(f"training jobs may go on: {error.message}; {self.removal_hint}"))

    def end_jobs(self) -> list[str]:
        """Stop the training jobs of the run that have not ended; gives their names. Raises EngineError."""
        live = self.live_jobs()
        for name in live:
            with contextlib.suppress(Refused):
                self.service.stop(name)
        return live

    def remove(self) -> None:
        """See `Backend`: with what the run has in the store, but for the code, which other runs may have too.

        Training jobs that have ended stay in SageMaker's own list, which cannot be changed.
        """
        self.end_jobs()
        objects.remove(self._model["source"].removesuffix("/output"), self._home)
        for name in self._jobs():
            with contextlib.suppress(EngineError):
                self.service.delete(name)

    @property
    def removal_hint(self) -> str:  # type: ignore[override]
        """See `Backend`."""
        if self._where["kind"] != "sagemaker":
            return f"windlass stop {self._plan.run_id}"
        name = layout.job_name(self._plan.run_id, 1)
        return f"to end them: aws sagemaker stop-training-job --training-job-name {name}"


class _Connecting:
    """Connects in a thread: importing botocore and reading its model of SageMaker takes 0.2 s."""

    def __init__(self, where: Mapping[str, Any]) -> None:
        self._where = where
        self._made: Service | None = None
        self._thread = threading.Thread(target=self._run, name="connect", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # the next attempt, which is made where it can be reported, fails too
            self._made = connect(self._where, os.environ)

    def result(self) -> Service | None:
        """The service, once; None where it could not be made."""
        self._thread.join()
        made, self._made = self._made, None
        return made


class _Fetching:
    """Brings the model home in a thread: the supervisor does not wait for it."""

    def __init__(self, fetch: Callable[[], list[str]], wake: Callable[[], None]) -> None:
        """`fetch` returns what it has left out."""
        self._left_out: list[str] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(fetch, wake), name="model", daemon=True)
        self._thread.start()

    def _run(self, fetch: Callable[[], list[str]], wake: Callable[[], None]) -> None:
        try:
            self._left_out = fetch()
        except Exception as error:
            self._error = error
        wake()

    def is_done(self, record: Recorder) -> bool:
        """Whether it is over; a model that cannot be read is still in the store, and costs the run nothing."""
        if self._thread.is_alive():
            return False
        if self._error is not None:
            error = self._error
            words = error.message if isinstance(error, WindlassError) else str(error)
            record.note(Warned(f"the model was not brought home: {words}", MODEL_AWAY))
        if self._left_out:
            record.note(Warned(f"of the model was not brought home: {layout.some_of(self._left_out)}"))
        return True


def _number(folder: Path) -> int:
    """Of the attempt that has this folder."""
    return int(folder.name.rpartition("-")[2])
