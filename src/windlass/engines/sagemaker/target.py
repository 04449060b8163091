"""Runs in an account, found by the tags of their training jobs. Runs of other machines have no record here.

SageMaker's `Search` returns jobs with their tags and states in one call and needs one permission; ListTrainingJobs
returns no tags. The search index lags by some seconds.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Final, NamedTuple

from windlass.compat import override
from windlass.engines.base import Engine, OpenPort, TargetRuns
from windlass.engines.sagemaker import layout
from windlass.engines.sagemaker.connect import require_boto3
from windlass.engines.sagemaker.description import has_containers, seconds_of
from windlass.engines.sagemaker.engine import SageMakerEngine
from windlass.engines.sagemaker.request import attempt_channel
from windlass.engines.sagemaker.service import (
    COMPLETED,
    ENDED,
    FAILED,
    LOG_GROUP,
    STOPPED,
    STOPPING,
    Absent,
    Description,
    Refused,
    Service,
)
from windlass.engines.values import Placement, RunState
from windlass.errors import EngineError, NoSuchRun, UsageError
from windlass.runs.events import RootCause
from windlass.runs.naming import choose
from windlass.runs.phase import Phase
from windlass.runs.record import About, Status, Times

if TYPE_CHECKING:
    from windlass.engines.deployments import Deployments
    from windlass.engines.sagemaker.aws import Aws
    from windlass.runs.store import Store
    from windlass.spec.targets import SageMakerTarget

ENDS: Final = {COMPLETED: Phase.SUCCEEDED, FAILED: Phase.FAILED, STOPPED: Phase.STOPPED, STOPPING: Phase.STOPPING}
PHASES: Final = {
    "Pending": Phase.QUEUED,
    "Starting": Phase.PROVISIONING,
    "LaunchingMLInstances": Phase.PROVISIONING,
    "PreparingTrainingStack": Phase.PROVISIONING,
    "Downloading": Phase.PULLING,
    "DownloadingTrainingImage": Phase.PULLING,
    "Training": Phase.TRAINING,
    "Interrupted": Phase.RESTARTING,
    "Restarting": Phase.RESTARTING,
    "Uploading": Phase.UPLOADING,
}
"""Phases by secondary status of jobs that have not ended. A job with running containers counts as `training`, because
its logs are not read."""
NEED_RECORD: Final = ("artifacts", "checkpoints", "cost", "cp", "events", "resume", "rm", "why")
"""Commands that need the record of a run."""
LIMITS: Final = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded")


class ListedRun(NamedTuple):
    """A run, as its newest training job describes it."""

    id: str
    job: Description
    tags: Mapping[str, str]
    created_at: float
    """Creation time of the run's first job in Unix seconds."""

    @property
    def name(self) -> str:
        """Name of the newest training job."""
        return str(self.job["TrainingJobName"])

    @property
    def phase(self) -> Phase:
        """Phase of the newest training job. Whether a supervisor will restart the run is unknown here."""
        second = str(self.job.get("SecondaryStatus", ""))
        if second in LIMITS:
            return Phase.FAILED
        return ENDS.get(str(self.job["TrainingJobStatus"])) or PHASES.get(second, Phase.STARTING)

    def state(self, target: str) -> RunState:
        """Returns the state of the run, built from the training job instead of a record."""
        changed = seconds_of(self.job.get("LastModifiedTime"), self.created_at)
        status = Status(
            id=self.id,
            name=self.tags.get(layout.JOB_TAG, ""),
            target=target,
            phase=self.phase,
            times=Times(self.created_at, changed, ended_at=changed if self.phase.is_terminal else None),
            output_dir="",
            about=About(self.tags.get(layout.USER_TAG, "")),
            cause=RootCause(reason) if (reason := self.job.get("FailureReason")) else None,
        )
        return RunState(status, time.time(), is_recorded=False, placement=self.placement)

    @property
    def placement(self) -> Placement:
        """Placement with the number of hosts as the number of pods; an account has no namespaces."""
        count = int(self.job.get("ResourceConfig", {}).get("InstanceCount", 0))
        return Placement("", int(self.name.rpartition("-")[2]), count if has_containers(self.job) else 0, count)


def runs(jobs: Sequence[Description]) -> list[ListedRun]:
    """Groups training jobs to runs, newest first; jobs without Windlass's tags are ignored."""
    found: dict[str, ListedRun] = {}
    for job in sorted(jobs, key=lambda one: seconds_of(one.get("CreationTime"))):
        tags = {str(one["Key"]): str(one["Value"]) for one in job.get("Tags") or ()}
        run_id = tags.get(layout.RUN_TAG)
        if run_id is None or re.fullmatch(rf"{re.escape(run_id)}-\d{{1,9}}", str(job["TrainingJobName"])) is None:
            continue
        first = found.get(run_id)
        created = first.created_at if first is not None else seconds_of(job.get("CreationTime"))
        found[run_id] = ListedRun(run_id, job, tags, created)
    return sorted(found.values(), key=lambda one: (-one.created_at, one.id))


class AccountRuns(TargetRuns):
    """Runs in an account."""

    kind: ClassVar[str] = "sagemaker"
    _target: SageMakerTarget

    @contextlib.contextmanager
    def _service(self) -> Iterator[Aws]:
        require_boto3()
        from windlass.engines.sagemaker.aws import Aws

        role = self._target.role
        account = role.split(":")[4] if role.startswith("arn:") else ""
        with contextlib.closing(Aws(self._target.region, account)) as service:
            yield service

    @override
    def deployments(self) -> Deployments:
        require_boto3()
        from windlass.engines.sagemaker.deployments import SageMakerDeployments

        return SageMakerDeployments(self._target, self._context.home)

    # -- all runs -----------------------------------------------------------------------------------------------------

    def list(self, *, is_everywhere: bool = False) -> list[RunState]:
        """Lists the runs of the account; `is_everywhere` has no effect because an account has no namespaces."""
        with self._service() as service:
            seen = runs(service.tagged(layout.RUN_TAG))
        return [self._state_of(one) for one in seen]

    def _state_of(self, seen: ListedRun) -> RunState:
        """Returns the state of a run, from its recorded status if this machine has a record."""
        try:
            self.store.status(seen.id)
        except NoSuchRun:
            return seen.state(self._target.name)
        status = SageMakerEngine(self.store).status(seen.id)
        return RunState(status, self._context.now(), placement=seen.placement)

    def find(self, run: str | None) -> tuple[Engine, str]:
        """Resolves a run id, a prefix or a job name among the runs of the account. Raises NoSuchRun, EngineError."""
        where = self._target.name
        hint = f"windlass ps --on {where} lists them"
        if run == "":  # a script may have passed an unset variable
            raise NoSuchRun("the given id is empty", hint)
        with self._service() as service:
            every = [one.id for one in runs(service.tagged(layout.RUN_TAG))]
        # The search index lags, and lacks runs whose job was never created.
        every += [one.id for one in self.store.statuses() if one.target == where and one.id not in every]
        found = choose(run, every, where) if run else next(iter(every), None)
        if found is None:
            raise NoSuchRun(f"no run on {where} has the id '{run}'" if run else f"there is no run on {where}", hint)
        try:
            self.store.status(found)
        except NoSuchRun:
            return self, found
        return RecordedRun(self.store, self), found

    # -- one run without a record -------------------------------------------------------------------------------------

    def status(self, run_id: str) -> Status:
        """Returns the status from the newest training job. Raises NoSuchRun, EngineError."""
        return self._listed_run(run_id).state(self._target.name).status

    @override
    def state(self, run_id: str, now: float) -> RunState:
        return self._listed_run(run_id).state(self._target.name)

    def _listed_run(self, run_id: str) -> ListedRun:
        """Returns a run from the search index, with the current state of its newest job. Raises NoSuchRun,
        EngineError.
        """
        with self._service() as service:
            found = next((one for one in runs(service.tagged(layout.RUN_TAG, run_id)) if one.id == run_id), None)
            if found is None:
                raise NoSuchRun(
                    f"no run on {self._target.name} has the id '{run_id}'",
                    f"windlass ps --on {self._target.name} lists them",
                )
            return found._replace(job=service.describe(found.name))

    @contextlib.contextmanager
    def logs(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
        """Yields a temporary folder with the logs of the run's newest job. Raises EngineError."""
        import tempfile

        from windlass.engines.sagemaker import objects
        from windlass.engines.sagemaker.attempt import JobAttempt
        from windlass.worker.protocol import unpack

        job = self._listed_run(run_id).job
        address = attempt_channel(job)
        if not address:
            raise EngineError(
                f"{job['TrainingJobName']} has the tags of Windlass, and was not made by it",
                f"windlass ps --on {self._target.name} lists what has them",
            )
        try:
            number, specs = unpack(objects.get(address, layout.NODES, self._context.home))
        except EngineError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise EngineError(
                f"the files of {run_id} were removed from {address}",
                f"CloudWatch has the log: aws logs tail {LOG_GROUP} --log-stream-name-prefix {run_id}",
            ) from error
        except ValueError as error:
            raise EngineError(f"{address}{layout.NODES} cannot be read: {error}", objects.HINT) from error
        with tempfile.TemporaryDirectory(prefix="windlass-logs-") as name, self._service() as service:
            folder = Path(name, f"attempt-{number}")
            folder.mkdir()
            by_place = [specs[place] for place in sorted(specs)]
            turned = threading.Event()
            attempt = JobAttempt(service, str(job["TrainingJobName"]), number, by_place, folder, turned.set)
            with contextlib.closing(attempt):
                turned.wait()  # after the first poll, all lines that have arrived are read
                if attempt.trouble is not None:
                    raise EngineError(attempt.trouble.message, attempt.trouble.hint)
                yield Path(name), (lambda: attempt.all_read) if follow else None

    def grace_seconds(self, run_id: str) -> float:
        """Returns 120, the seconds that SageMaker gives every job."""
        return 120.0

    @override
    def can_kill(self, run_id: str) -> bool:
        return False

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Stops all training jobs of the run. A supervisor on another machine then ends the run as stopped from
        outside.
        """
        for name in self.still_running(run_id):
            with self._service() as service:
                try:
                    service.stop(name)
                except Refused:
                    if service.describe(name)["TrainingJobStatus"] not in (*ENDED, STOPPING):
                        raise

    def still_running(self, run_id: str) -> builtins.list[str]:
        """Lists training jobs of the run that have neither ended nor begun to stop, according to the account."""
        with self._service() as service:
            names = [str(job["TrainingJobName"]) for job in service.tagged(layout.RUN_TAG, run_id)]
            numbers = {
                int(name.rpartition("-")[2]) for name in names if re.fullmatch(rf"{re.escape(run_id)}-\d{{1,9}}", name)
            }
            found = {layout.job_name(run_id, number): _described(service, run_id, number) for number in numbers}
            newer = max(numbers, default=0) + 1  # newer jobs may be missing in the search index
            while (job := _described(service, run_id, newer)) is not None:
                found[layout.job_name(run_id, newer)] = job
                newer += 1
        return [name for name, job in found.items() if job and job["TrainingJobStatus"] not in (*ENDED, STOPPING)]

    def exec(
        self,
        run_id: str,
        node: int,
        rank: int | None,
        command: Sequence[str],
        stdin: IO[bytes] | None,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> int:
        """Raises UsageError: SageMaker cannot run commands in a container."""
        return SageMakerEngine(self.store).exec(run_id, node, rank, command, stdin, stdout, stderr)

    def ports(self, run_id: str) -> AbstractContextManager[OpenPort]:
        """Raises UsageError: SageMaker gives no access to the network of a training job."""
        return SageMakerEngine(self.store).ports(run_id)

    @classmethod
    def unsupported(cls, command: str) -> UsageError:
        """Returns the error for an unsupported command; for one that needs the record, names the machine that
        has it.
        """
        if command not in NEED_RECORD:
            return super().unsupported(command)
        return UsageError(f"{command} is not supported for runs that another machine started", "call it there")


def _described(service: Service, run_id: str, number: int) -> Description | None:
    """Returns the description of a run's training job, or None if it does not exist. Raises Unavailable if that is
    unknown.
    """
    try:
        found = service.describe(layout.job_name(run_id, number))
    except Absent:
        return None
    return found if found.get("Environment", {}).get(layout.RUN_VARIABLE) == run_id else None


class RecordedRun(SageMakerEngine):
    """A run with a record on this machine that was named with its target: stop also queries the account."""

    def __init__(self, store: Store, account: AccountRuns) -> None:
        super().__init__(store)
        self._account = account

    @override
    def stop(self, run_id: str, *, now: bool = False) -> None:
        super().stop(run_id, now=now)
        if self.store.status(run_id).phase.is_terminal:
            self._account.stop(run_id)

    @override
    def still_running(self, run_id: str) -> builtins.list[str]:
        return self._account.still_running(run_id)
