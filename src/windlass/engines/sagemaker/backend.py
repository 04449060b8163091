"""Backend of SageMaker: one training job for each attempt. Every step can be repeated: existing jobs are kept.

The name of a job is written before its creation is requested. From then on the job counts as running, and as billed,
until the service reports that it has ended or does not exist. An error of the service proves neither.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.engines import ports
from windlass.engines.sagemaker import layout, objects
from windlass.engines.sagemaker.attempt import JobAttempt, unavailable
from windlass.engines.sagemaker.connect import connect
from windlass.engines.sagemaker.description import read_description, write_description
from windlass.engines.sagemaker.late_logs import read_late_logs
from windlass.engines.sagemaker.request import attempt_channel, for_attempt
from windlass.engines.sagemaker.service import (
    DELETED,
    ENDED,
    IN_PROGRESS,
    IN_USE,
    Absent,
    Description,
    NotLoggedIn,
    Refused,
    Service,
    Unavailable,
)
from windlass.engines.sagemaker.unfinished import UnfinishedMarker
from windlass.engines.travel import planned_code
from windlass.errors import EngineError, error_line
from windlass.plan.compose import AttemptFacts, Rendezvous, compose
from windlass.plan.environment import consecutive_ports
from windlass.plan.plan import Plan
from windlass.plan.steps import CodeStep, ModelStep, ServiceStep, TrainingJobStep
from windlass.runs.clock import Clock
from windlass.runs.events import MODEL_AWAY, Warned, entries
from windlass.runs.record import Status
from windlass.storage.files import sync
from windlass.supervise.backend import Backend, TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import OUTPUTS_INCOMPLETE, pack

REQUESTED: Final = "requested"
"""File in the folder of an attempt: the name of its training job, written before the job is requested."""
STARTED: Final = "started"
"""File in the folder of an attempt: the training job has been created."""


class SageMakerBackend(Backend):
    """Training jobs of one run."""

    outlives_supervisor = True
    uploads_outputs = True

    def __init__(self, plan: Plan, run_dir: Path, service: Service | None = None) -> None:
        """Uses `service`, or connects to the service of the plan at its first use: the command that sends the code does
        not need a connection.
        """
        self._given = service
        self._plan = plan
        self._run_dir = run_dir
        self._home = run_dir.parent.parent
        self._where = plan.only(ServiceStep)
        self._body = plan.only(TrainingJobStep).body
        self._model = plan.only(ModelStep)
        self._ahead: _Connecting | None = None
        self._attempt: JobAttempt | None = None
        self._model_fetch: _ModelFetch | None = None
        self._ports = contextlib.ExitStack()
        """Sockets that reserve the ports of the attempt until its ranks have finished their imports and bind them."""

    @classmethod
    def of_supervisor(cls, plan: Plan, run_dir: Path) -> SageMakerBackend:
        """Creates the backend of a supervisor, which connects to AWS in a thread while the supervisor reads the record
        and uploads the code.
        """
        made = cls(plan, run_dir)
        if made._where.engine == "sagemaker":
            made._ahead = _Connecting(made._where)
        return made

    @functools.cached_property
    def service(self) -> Service:
        """Connection to the service, opened at the first use. Raises EngineError, UsageError."""
        made = self._ahead.result() if self._ahead is not None else self._given
        return made or connect(self._where, os.environ)

    @override
    def close(self) -> None:
        self._ports.close()
        if "service" in vars(self):
            self.service.close()

    # -- attempts -----------------------------------------------------------------------------------------------------

    def send_code(self) -> None:
        """Uploads the code archive unless the store already contains it. Raises EngineError, UsageError."""
        code = self._plan.only(CodeStep)
        if not objects.has_file(code.address, layout.ARCHIVE, code.bytes, self._home):
            objects.put(code.address, {layout.ARCHIVE: planned_code(self._plan)}, self._home)

    @override
    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> JobAttempt:
        is_repeated = (folder / REQUESTED).exists()
        try:
            if not (is_repeated and self._has_job(folder, is_settled=False)):
                self._create(record, folder, members, clock.time(), is_repeated=is_repeated)
        except Unavailable as error:
            raise unavailable(error) from error
        with contextlib.suppress(OSError):
            (folder / STARTED).touch()
        return self.adopt(folder, number, members, clock)

    def _request_name(self, folder: Path) -> None:
        """Writes the name of the training job before it is created, for later supervisors and for the cleanup.

        Raises TargetUnavailable if the disk is full.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / REQUESTED).write_text(self._name(folder))
            sync(folder)  # after a power failure, a job without its name would count as one that was not requested
        except OSError as error:
            words = f"the name of the training job cannot be written, so that it is not created: {error.strerror}"
            raise TargetUnavailable("NotObserved", words, "see: windlass doctor") from error

    @override
    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> JobAttempt:
        name, specs = layout.job_name(self._plan.run_id, number), compose(self._plan.nodes, members)
        with contextlib.suppress(OSError):  # a killed supervisor may have created the job but not the folder
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._attempt = JobAttempt(self.service, name, number, specs, folder, clock.wake)
        return self._attempt

    def is_started(self, folder: Path) -> bool | None:
        """Whether the training job of an attempt was created; None if unknown.

        Asks the service if the marker file is missing, because the response to the creation may have been lost.
        """
        try:
            return (folder / STARTED).exists() or self._has_job(folder)
        except EngineError:
            return None

    def _has_job(self, folder: Path, *, is_settled: bool = True) -> bool:
        """Whether the training job of an attempt exists.

        With `is_settled`, raises Unavailable while an earlier request may still create the job. Also raises Unavailable
        if the service cannot answer.
        """
        if not (folder / REQUESTED).exists():
            return False
        try:
            return self._is_ours(self.service.describe(self._name(folder)))
        except Absent:
            if is_settled:
                self._require_settled(folder)
            return False

    def _require_settled(self, folder: Path) -> None:
        """Raises Unavailable while an earlier request may still create the training job of an attempt."""
        if (left := self._settling_seconds(folder)) > 0:
            raise Unavailable(
                f"whether training job {self._name(folder)} will be created is not known for {left:.0f} s"
                ": the request has no answer"
            )

    def _settling_seconds(self, folder: Path) -> float:
        """Returns the seconds for which an earlier request may still create the training job of an attempt."""
        with contextlib.suppress(FileNotFoundError):
            age = time.time() - (folder / REQUESTED).stat().st_mtime
            return self.service.settle_seconds - max(age, 0.0)
        return 0.0

    def _name(self, folder: Path) -> str:
        return layout.job_name(self._plan.run_id, _number(folder))

    def _create(self, record: Recorder, folder: Path, members: Sequence[int], now: float, *, is_repeated: bool) -> None:
        """Creates the training job of an attempt unless it exists; `is_repeated`: the creation was requested before.

        Raises EngineError.
        """
        number = _number(folder)
        limit, left = self._plan.policy.timeout_seconds, None
        if limit is not None:
            left = limit - record.status.times.limited_seconds(now)
        body = for_attempt(self._body, self._plan.run_id, number, left)
        hosts = tuple(layout.host(place) for place in range(len(members)))
        address = attempt_channel(body)
        self._ports.close()
        port = self._rendezvous_port(address)
        facts = AttemptFacts(
            number=number,
            folder=f"{layout.WORK}/attempt",
            rendezvous=Rendezvous(hosts[0], port, hosts, self._rank_ports(len(hosts), number)),
            since=record.status.times.created_at,
            reserved_port=port if self._shares_ports and not self._binds_by_itself else None,
            continuation=record.history.continuation(record.status),
        )
        specs = compose(self._plan.nodes, members, facts)
        self.send_code()
        objects.put(address, objects.start_files(pack(number, dict(enumerate(specs)))), self._home)
        self._request_name(folder)
        try:
            self.service.create(body)
        except (Refused, NotLoggedIn) as error:
            if isinstance(error, Refused) and error.code == IN_USE:
                self._require_ours(folder)
            elif not (is_repeated or error.is_repeated):
                (folder / REQUESTED).unlink()
                raise
            elif isinstance(error, NotLoggedIn) or not self._has_job(folder, is_settled=False):
                self._request_name(folder)  # keeps the name: an earlier request may still create the job
                raise
        except Unavailable:
            # The file's new modification time restarts the time limit for the request to be carried out.
            self._request_name(folder)
            raise

    def _is_ours(self, there: Description) -> bool:
        """Whether a training job belongs to this run."""
        return bool(there.get("Environment", {}).get(layout.RUN_VARIABLE) == self._plan.run_id)

    def _require_ours(self, folder: Path) -> None:
        """Raises EngineError if another run or program uses the name of an attempt's job; Unavailable if the owner is
        unknown.
        """
        try:
            is_ours = self._is_ours(self.service.describe(self._name(folder)))
        except Absent as error:
            raise Unavailable(f"training job {self._name(folder)} exists but is not found: {error.message}") from error
        if not is_ours:
            raise EngineError(
                f"training job {self._name(folder)} exists already and belongs to another run", "run again"
            )

    @property
    def _shares_ports(self) -> bool:
        """Whether hosts share the ports of this machine."""
        return bool(self._where.engine != "sagemaker")

    @property
    def _binds_by_itself(self) -> bool:
        """Whether the program may bind MASTER_PORT without SO_REUSEADDR: a reserved socket would make that fail."""
        return self._plan.nodes.launcher == "plain"

    def _rendezvous_port(self, address: str) -> int:
        """Returns the port of the rendezvous; `address` identifies the attempt."""
        if not self._shares_ports:
            return layout.rendezvous_port(address)
        if not self._binds_by_itself:
            return self._reserved_port()
        with ports.reserve(None) as found:
            return int(found.getsockname()[1])

    def _rank_ports(self, num_nodes: int, number: int) -> tuple[int, ...]:
        """Returns one port for each rank if the launcher needs them."""
        found = consecutive_ports(self._plan.nodes.launcher, num_nodes, self._plan.procs_per_node, number)
        return tuple(self._reserved_port() for _ in found) if self._shares_ports else found

    def _reserved_port(self) -> int:
        """Reserves a port until the next attempt or the end of this process, and returns its number."""
        return int(self._ports.enter_context(ports.reserve(None)).getsockname()[1])

    @override
    def trouble(self) -> TargetUnavailable | None:
        return self._attempt.trouble if self._attempt is not None else None

    @override
    def lives(self) -> bool:
        try:
            return bool(self.live_jobs())
        except EngineError:
            return True

    def live_jobs(self) -> list[str]:
        """Returns the names of the run's training jobs that have not ended. Raises EngineError if a status is
        unknown.
        """
        return [self._name(folder) for folder in self._unsettled() if self._status(folder) not in ENDED]

    def _unsettled(self) -> list[Path]:
        """Returns the folders of attempts whose training job was requested and is not known to have ended."""
        return [
            folder
            for folder in sorted(self._run_dir.glob("attempt-*"), key=_number)
            if any((folder / name).exists() for name in (REQUESTED, STARTED))
            and read_description(folder).get("TrainingJobStatus") not in ENDED
        ]

    def _status(self, folder: Path) -> str:
        """Returns the status of an attempt's training job, and stores the description once the job has ended.

        Raises EngineError.
        """
        gone = {**read_description(folder), "TrainingJobStatus": DELETED}
        try:
            found = self.service.describe(self._name(folder))
            found = found if self._is_ours(found) else gone
        except Absent:
            self._require_settled(folder)
            found = gone
        if (status := str(found["TrainingJobStatus"])) in ENDED:
            with contextlib.suppress(OSError):
                write_description(folder, found)
        return status

    # -- the end ------------------------------------------------------------------------------------------------------

    def upload(self, record: Recorder, clock: Clock) -> bool:
        """Fetches the model from the store, where SageMaker has uploaded it, to the folder of the run."""
        address = objects.model_address(self._model, self._plan.run_id, len(record.status.attempts))
        if self._model_fetch is None:
            self._model_fetch = _ModelFetch(lambda: self._fetch_model(address), clock.wake)
        if not self._model_fetch.is_over:
            return False
        if (error := self._model_fetch.error) is not None:
            why = error_line(error)
            self.unfinished.write(replace(self.unfinished.read(), model=address, why_model=why))
            again = f"the next command tries again: windlass cp {self._plan.run_id}:output ."
            record.note(Warned(f"the model was not fetched: {why}; it is in {address}, and {again}", MODEL_AWAY))
        elif self.unfinished.touched_at():  # clears the failure of an earlier attempt
            self.unfinished.write(replace(self.unfinished.read(), model=""), is_over=False)
        self._note_skipped(record, self._model_fetch.skipped)
        return True

    def _fetch_model(self, address: str) -> list[str]:
        """Fetches the model below an address and returns the files that were skipped. Raises EngineError, OSError."""
        return objects.fetch_model(f"{address}/", Path(self._model.path), self._home)

    def _note_skipped(self, record: Recorder, names: Sequence[str]) -> None:
        if names:
            message = f"files of the model were not copied to this machine: {layout.some_of(names)}"
            record.note(Warned(message, OUTPUTS_INCOMPLETE))

    def prepare_end(self, record: Recorder) -> None:
        """Writes the marker of unfinished work, so that the next command completes it if the supervisor is killed."""
        self.unfinished.begin()

    @functools.cached_property
    def unfinished(self) -> UnfinishedMarker:
        """Marker of the work at the end of the run that is not done yet."""
        return UnfinishedMarker(self._run_dir)

    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        """Stops the training jobs of an ended run that still run, and fetches its model.

        Work that fails is written to the marker, and the next command repeats it.
        """
        left = self.unfinished.read()
        if is_patient and (waits := [self._settling_seconds(folder) for folder in self._unsettled()]):
            time.sleep(max(0.0, *waits))
        try:
            self.end_jobs()
            left = replace(left, jobs="")
        except EngineError as error:
            message = f"training jobs may still be running: {error_line(error)}; {self.removal_hint}"
            if message not in [one.message for one in entries(record.writer.events(), Warned)]:
                record.note(Warned(message))
            left = replace(left, jobs=error_line(error), jobs_hint=self.removal_hint)
        self.unfinished.write(left)
        if left.model and self._model_fetch is None:
            with contextlib.suppress(EngineError, OSError):
                self.refetch_model(record)

    def refetch_model(self, record: Recorder) -> None:
        """Fetches the model that an earlier command could not fetch. Raises EngineError, OSError."""
        left = self.unfinished.read()
        try:
            self._note_skipped(record, self._fetch_model(left.model))
        except (EngineError, OSError) as error:
            self.unfinished.write(replace(left, why_model=error_line(error)))
            raise
        self.unfinished.write(replace(left, model=""))

    def end_jobs(self) -> list[str]:
        """Stops the training jobs of the run and returns the names of those that have not ended yet.

        Raises EngineError if the status of a job is unknown, after all other jobs were stopped.
        """
        live, problem = list[str](), None
        for folder in self._unsettled():
            try:
                if self._end_job(folder):
                    live.append(self._name(folder))
            except EngineError as error:
                problem = error
        if problem is not None:
            raise problem
        return live

    def require_ended(self, command: str) -> None:
        """Stops the training jobs of the run. Raises EngineError, with the advice to repeat `command` later, if a job
        has not ended yet.
        """
        if live := self.end_jobs():
            run_id = self._plan.run_id
            raise EngineError(
                f"training job {live[-1]} of {run_id} is still stopping",
                f"repeat this once it has stopped: windlass {command} {run_id}",
            )

    def _end_job(self, folder: Path) -> bool:
        """Stops the training job of an attempt; returns whether the job has not ended yet. Raises EngineError."""
        name, refused = self._name(folder), ""
        if (status := self._status(folder)) == IN_PROGRESS:
            try:
                self.service.stop(name)
            except Refused as error:  # the job may have ended already
                refused = f": {error.message}"
            if (status := self._status(folder)) == IN_PROGRESS:
                raise EngineError(
                    f"training job {name} still runs although a stop was requested{refused}", self.removal_hint
                )
        return status not in ENDED

    def read_late_logs(self, status: Status) -> None:
        """Reads log lines that arrived after the end of their jobs. Raises EngineError, OSError."""
        for one in status.attempts:
            specs = compose(self._plan.nodes, one.members)
            folder = self._run_dir / f"attempt-{one.number}"
            read_late_logs(lambda: self.service, self._name(folder), one.number, specs, folder)

    def remove(self) -> None:
        """Stops the training jobs of the run and removes its objects from the store, except the code, which other runs
        may share.

        Ended training jobs remain in SageMaker's list, which cannot be changed. Raises EngineError if a job is still
        stopping, because it uploads its model before it ends.
        """
        self.require_ended("rm")
        objects.remove(self._model.source.removesuffix("/output"), self._home)
        for folder in self._run_dir.glob("attempt-*"):
            with contextlib.suppress(EngineError):
                self.service.delete(self._name(folder))

    @property
    @override
    def removal_hint(self) -> str:  # type: ignore[override]
        if self._where.engine != "sagemaker":
            return f"windlass stop {self._plan.run_id}"
        names = [self._name(folder) for folder in self._unsettled()] or [layout.job_name(self._plan.run_id, 1)]
        region = self._where.region
        return f"to end them: aws sagemaker stop-training-job --region {region} --training-job-name {names[-1]}"


class _Connecting:
    """A thread that connects to the service: importing botocore and its model of SageMaker takes 0.2 s."""

    def __init__(self, where: ServiceStep) -> None:
        self._where = where
        self._made: Service | None = None
        self._thread = threading.Thread(target=self._run, name="connect", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # The next attempt to connect raises the same error in a thread that can report it.
        with contextlib.suppress(Exception):
            self._made = connect(self._where, os.environ)

    def result(self) -> Service | None:
        """Waits for the connection and returns it once; None if it failed."""
        self._thread.join()
        made, self._made = self._made, None
        return made


class _ModelFetch:
    """A thread that fetches the model, so that the supervisor does not wait for it."""

    def __init__(self, fetch: Callable[[], list[str]], wake: Callable[[], None]) -> None:
        """`fetch` returns the names of skipped files."""
        self.skipped: list[str] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(fetch, wake), name="model", daemon=True)
        self._thread.start()

    def _run(self, fetch: Callable[[], list[str]], wake: Callable[[], None]) -> None:
        try:
            self.skipped = fetch()
        except Exception as error:
            self.error = error
        wake()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended, with or without an error. After an error, the model is still in the store."""
        return not self._thread.is_alive()


def _number(folder: Path) -> int:
    """Returns the number of the attempt whose folder this is."""
    return int(folder.name.rpartition("-")[2])
