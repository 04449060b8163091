"""Engines for SageMaker and for its emulation on this machine. A process on this machine supervises their runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Final

from windlass.compat import override
from windlass.engines.checks import CheckReport
from windlass.engines.resuming import RESUMABLE
from windlass.engines.sagemaker.late_logs import LATE
from windlass.engines.sagemaker.unfinished import UnfinishedMarker, UnfinishedWork
from windlass.engines.supervised import SupervisedEngine, supervisor_program
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.plan.steps import ModelStep, TrainingJobStep
from windlass.runs.phase import Phase
from windlass.runs.store import RunWriter, Store

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations
    from windlass.engines.base import Engine, OpenPort
    from windlass.engines.deployments import Deployments
    from windlass.engines.exported import Manifests, WrittenRequest
    from windlass.engines.sagemaker.backend import SageMakerBackend
    from windlass.engines.values import ResultsLocation
    from windlass.runs.context import Context
    from windlass.runs.ledger import Billed, Cost
    from windlass.runs.metrics import Series
    from windlass.runs.record import Status
    from windlass.spec.job import Job
    from windlass.spec.targets import SageMakerLocalTarget, SageMakerTarget
    from windlass.worker.tarpipe import Received

RETRY_SECONDS: Final = 10.0
"""Minimum seconds between a failed cleanup of a run and the next attempt by a command."""


class SageMakerEngine(SupervisedEngine):
    """Runs on SageMaker."""

    kind: ClassVar[str] = "sagemaker"
    stopped_words: ClassVar[str] = "training jobs that still ran were stopped"
    is_remote: ClassVar[bool] = True
    _supervisor = supervisor_program("windlass.engines.sagemaker.backend:SageMakerBackend.of_supervisor", "-I")

    @classmethod
    @override
    def make_plan(
        cls, job: Job, target: SageMakerTarget | SageMakerLocalTarget, run_id: str, base: Path, context: Context
    ) -> Plan:
        from windlass.engines.sagemaker.facts import read_facts
        from windlass.engines.sagemaker.plan import plan

        facts = read_facts(job, target, base=base, home=context.home, environ=context.environ)
        return plan(job, target, facts, run_id)

    @classmethod
    @override
    def check(cls, target: SageMakerTarget | SageMakerLocalTarget, context: Context) -> CheckReport:
        from windlass.engines.sagemaker.connect import require_boto3
        from windlass.engines.sagemaker.preflight.checks import checks

        require_boto3()
        from windlass.engines.sagemaker.preflight.account import Account

        assert target.kind == "sagemaker"
        return CheckReport(checks(target, Account(target.region)), {"target": target.name, "region": target.region})

    @classmethod
    def role(cls, target: SageMakerTarget | SageMakerLocalTarget, context: Context) -> list[dict[str, Any]]:
        """Returns three policies: the trust policy of the role, the permissions of the role, and those of the user who
        submits runs; for a target with a role for schedules, four more that deployments of models need.
        """
        from windlass.engines.sagemaker.connect import require_boto3
        from windlass.engines.sagemaker.preflight import policies

        assert target.kind == "sagemaker"
        require_boto3()
        from windlass.engines.sagemaker.aws import account, role_arn

        number, role = account(target.region), role_arn(target.role, target.region)
        runs = [
            {"trust policy": role, "document": policies.trust_policy()},
            {"policy of": role, "document": policies.role_policy(target, number)},
            {"policy of": "the login that submits runs", "document": policies.user_policy(target, number, role)},
        ]
        if target.schedule_role is None:
            return runs
        ends = role_arn(target.schedule_role, target.region)
        deployer = policies.deployer_policy(target, number, role, ends)
        return [
            *runs,
            {"policy of": f"{role}, to serve models", "document": policies.model_role_policy(target, number)},
            {"trust policy": ends, "document": policies.trust_policy(policies.SCHEDULER)},
            {"policy of": ends, "document": policies.schedule_policy(target, number)},
            {"policy of": "the login that deploys models", "document": deployer},
        ]

    @classmethod
    def export(cls, plan: Plan, context: Context) -> Manifests:
        """Returns the run as a TrainingJob object of ACK."""
        from windlass.engines.sagemaker.export import manifests

        return manifests(plan, cls._code_of(plan, "plan -o manifest"), context.now())

    @classmethod
    @override
    def export_request(cls, plan: Plan, context: Context) -> WrittenRequest:
        from windlass.engines.sagemaker.export import request

        return request(plan, cls._code_of(plan, "plan -o request"), context.now())

    @classmethod
    def _code_of(cls, plan: Plan, what: str) -> bytes:
        """Returns the packed code of a plan. Raises UsageError if jobs of this engine run on this machine only."""
        from windlass.engines.travel import planned_code

        if not cls.is_remote:
            raise cls.unsupported(what)
        plan.require_runnable()
        return planned_code(plan)

    def checkpoint_dir(self, run_id: str) -> str:
        """Returns the address to which SageMaker uploads the checkpoints of hosts."""
        body = self.store.plan(run_id).only(TrainingJobStep).body
        if "CheckpointConfig" not in body:
            return super().checkpoint_dir(run_id)
        return str(body["CheckpointConfig"]["S3Uri"]).removeprefix("file://")

    def only_copy(self, run_id: str) -> str:
        """Describes checkpoints in the run's folder of the store, or a model that was not fetched; empty without
        either.
        """
        from windlass.engines.sagemaker import objects  # imported late: commands that list runs do not need this module

        folder, status = self.checkpoint_dir(run_id), self.status(run_id)
        model = self.store.plan(run_id).only(ModelStep)
        if address := self._unfinished_work(run_id).model:
            return f"its model, which is in {address}" if objects.has_any(address, self.store.home) else ""
        own = model.source.removeprefix("file://").removesuffix("output")
        if status.phase not in RESUMABLE or not folder.startswith(own) or not objects.has_any(folder, self.store.home):
            return ""
        return f"what it has saved in {folder}"

    def fetch(self, run_id: str, node: int, path: str, local: Path, on_progress: Callable[[int], None]) -> Received:
        """Copies the fetched model, or checkpoints on this machine. Files of hosts cannot be read."""
        from windlass.engines.copying import copy

        first, _, rest = path.partition("/")
        if first == "output" and self._unfinished_work(run_id).model:
            self._refetch_model(run_id)
        folders = {"output": str(self.store.run_dir(run_id) / "output"), "checkpoints": self.checkpoint_dir(run_id)}
        if first not in folders:
            raise UsageError(
                f"{path} is not among the files that {run_id} has fetched", f"windlass cp {run_id}:output ."
            )
        if folders[first].startswith("s3://"):
            raise UsageError(
                f"the {first} of {run_id} are in the store, at {folders[first]}",
                f"windlass data copy {folders[first]} FOLDER",
            )
        if not Path(folders[first]).exists():
            is_over = self.status(run_id).phase.is_terminal
            hint = f"windlass status {run_id}" if is_over else "it is fetched when the run has ended"
            raise UsageError(f"{run_id} has fetched no {first}", hint)
        return copy(Path(folders[first], rest), local, on_progress, Path(path).name)

    def _unfinished_work(self, run_id: str) -> UnfinishedWork:
        """Returns the unfinished work at the end of a run."""
        return UnfinishedMarker(self.store.run_dir(run_id)).read()

    def _refetch_model(self, run_id: str) -> None:
        """Fetches the model of an ended run. Raises EngineError."""
        from windlass.supervise.recorder import Recorder

        writer = self._writer_of_ended(run_id)
        if writer is None:
            raise EngineError(f"the model of {run_id} is being fetched now", f"windlass status {run_id}")
        with contextlib.closing(writer), contextlib.closing(self._backend_of(run_id)) as backend:
            assert hasattr(backend, "refetch_model")
            if self._unfinished_work(run_id).model:  # a process of an earlier command may have fetched the model
                backend.refetch_model(Recorder(writer))

    def results(self, run_id: str) -> ResultsLocation:
        """Returns the location of the results; for a model that was not fetched, its address in the store."""
        from windlass.engines.values import ResultsLocation

        if address := (left := self._unfinished_work(run_id)).model:
            return ResultsLocation("store", address, note=f"not fetched: {left.why_model}")
        return super().results(run_id)

    @contextlib.contextmanager
    def logs(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
        """Yields the folder of a run's logs; for an ended run, first reads lines that arrived late."""
        self._read_late_logs(run_id)
        with super().logs(run_id, follow=follow) as found:
            yield found

    def metrics(self, run_id: str) -> tuple[Series, ...]:
        """Returns the series of a run's metrics, for an ended run with points that arrived late. Raises OSError."""
        self._read_late_logs(run_id)
        return super().metrics(run_id)

    def _read_late_logs(self, run_id: str) -> None:
        """Reads log lines of an ended run that arrived after its end, if AWS answers."""
        status = self.store.status(run_id)
        is_due = status.phase.is_terminal and any(self.store.run_dir(run_id).glob(f"attempt-*/{LATE}"))
        if not is_due or (writer := self.store.writer(run_id)) is None:
            return
        with (
            contextlib.closing(writer),
            contextlib.suppress(EngineError, OSError),
            contextlib.closing(self._backend_of(run_id)) as backend,
        ):
            assert hasattr(backend, "read_late_logs")
            backend.read_late_logs(status)

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Requests a stop of the run; for an ended run, stops its remaining training jobs.

        Raises EngineError if the status of a training job is unknown.
        """
        if self.store.status(run_id).phase.is_terminal:
            self._end_leftovers(run_id, now=now)
        else:
            super().stop(run_id, now=now)

    def still_running(self, run_id: str) -> list[str]:
        """Lists training jobs of the run that have not ended. Raises EngineError."""
        with contextlib.closing(self._backend_of(run_id)) as backend:
            assert hasattr(backend, "live_jobs")
            return list(backend.live_jobs())

    def can_kill(self, run_id: str) -> bool:
        """Whether a stop without grace period is faster: only while the model is fetched. SageMaker has one kind of
        stop.
        """
        return self.status(run_id).phase is Phase.UPLOADING

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
        raise UsageError(
            "exec is not supported: SageMaker cannot run commands in a running container",
            f"windlass logs -f {run_id} shows the output",
        )

    def ports(self, run_id: str) -> AbstractContextManager[OpenPort]:
        """Raises UsageError: SageMaker gives no access to the network of a training job."""
        raise UsageError(
            "port-forward is not supported: SageMaker accepts no connections to the containers of a training job",
            f"windlass metrics {run_id} and windlass logs -f {run_id} show the run",
        )

    def observe(self, run_id: str) -> Observations:
        """Collects the observations of a run. Raises NoSuchRun."""
        from windlass.engines.sagemaker.observe import observe

        self._read_late_logs(run_id)
        return observe(self.store, self.status(run_id))

    @classmethod
    @override
    def billed(cls, run_dir: Path, cost: Cost | None) -> Billed | None:
        """Returns the billed time of all attempts that SageMaker has reported; None without any."""
        from windlass.engines.sagemaker.description import read_description
        from windlass.runs.ledger import Billed

        billed, used = 0.0, 0.0
        for folder in run_dir.glob("attempt-*"):
            description = read_description(folder)
            count = description.get("ResourceConfig", {}).get("InstanceCount", 1)
            billed += count * description.get("BillableTimeInSeconds", 0)
            used += count * description.get("TrainingTimeInSeconds", 0)
        if not used:
            return None
        return Billed(billed, used, None if cost is None else billed / 3600 * cost.per_node_hour)

    @classmethod
    @override
    def instance_type(cls, plan: Plan) -> str | None:
        return str(plan.only(TrainingJobStep).body["ResourceConfig"]["InstanceType"])

    def _backend(self, plan: Plan, run_dir: Path) -> SageMakerBackend:
        # imported late: commands that list runs do not need this module
        from windlass.engines.sagemaker.backend import SageMakerBackend

        return SageMakerBackend(plan, run_dir)

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        """Uploads the code from the command, so that the command reports errors. Stops earlier training jobs of the
        run.

        Raises EngineError if an earlier training job has not ended yet.
        """
        if writer.status.attempts:
            with contextlib.closing(self._backend_of(plan.run_id)) as before:
                assert hasattr(before, "require_ended")
                before.require_ended("resume")
        with contextlib.closing(self._backend(plan, self.store.run_dir(plan.run_id))) as backend:
            backend.send_code()

    def _remove_failed(self, plan: Plan) -> str:
        """Returns "": a failed submission leaves only the code, which other runs may share."""
        return ""

    def _after_end(self, status: Status) -> Status:
        """Starts a process that finishes the cleanup of the run, and adds unfinished work as a condition to the
        status.
        """
        marker = UnfinishedMarker(self.store.run_dir(status.id))
        if (touched_at := marker.touched_at()) is None:
            return status
        if time.time() - touched_at > RETRY_SECONDS and (writer := self.store.writer(status.id)) is not None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                self._start_supervisor(writer)
        left = marker.read().condition(status.id, status.times.ended_at)
        return status if left is None else status.with_condition(left)

    def _end_leftovers(self, run_id: str, *, now: bool) -> None:
        with contextlib.closing(self._backend_of(run_id)) as backend:
            assert hasattr(backend, "end_jobs")
            backend.end_jobs()


class SageMakerLocalEngine(SageMakerEngine):
    """Runs in an emulation of SageMaker's hosts on this machine."""

    kind: ClassVar[str] = "sagemaker-local"
    is_remote: ClassVar[bool] = False
    has_prices: ClassVar[bool] = False

    def __init__(
        self, store: Store, target: SageMakerLocalTarget | None = None, context: Context | None = None
    ) -> None:
        super().__init__(store)
        self._target, self._context = target, context

    @classmethod
    @override
    def connect(cls, store: Store, target: Any = None, context: Context | None = None) -> Engine:
        return cls(store, target, context)

    @override
    def deployments(self) -> Deployments:
        if self._target is None or self._context is None:
            raise self.unsupported("deploy")
        from windlass.engines.sagemaker.twin.deployments import TwinDeployments

        return TwinDeployments(self._target, self.store.home, self._context.environ)

    @classmethod
    def check(cls, target: SageMakerTarget | SageMakerLocalTarget, context: Context) -> CheckReport:
        """Raises UsageError: there is no account to check."""
        raise cls.unsupported("check")

    @classmethod
    def role(cls, target: SageMakerTarget | SageMakerLocalTarget, context: Context) -> list[dict[str, Any]]:
        """Raises UsageError: there is no role."""
        raise cls.unsupported("check --role")

    @classmethod
    @override
    def billed(cls, run_dir: Path, cost: Cost | None) -> Billed | None:
        """Returns None: this machine bills nothing."""
        return None
