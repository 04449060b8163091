"""Engine of Kubernetes clusters: plans runs, and supervises them from this machine or in the cluster.

On this machine, a detached process supervises a run. If that process dies, the pods continue to train; decisions such
as a restart wait until the next command starts it again.
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, ClassVar

from windlass.compat import override
from windlass.engines import copying
from windlass.engines.checks import CheckReport
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.optional import ANSWER_SECONDS, at_once
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.running import run_note
from windlass.engines.kubernetes.running.service_objects import ServiceObjects
from windlass.engines.resuming import RESUMABLE, require_resumable
from windlass.engines.supervised import SupervisedEngine, supervisor_program
from windlass.engines.values import ResultsLocation, RunState
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.plan.plan import Plan
from windlass.plan.steps import ClusterStep, CodeStep, NodePool, NodePoolsStep, SupervisorStep
from windlass.runs.events import ConditionChanged
from windlass.runs.phase import Phase
from windlass.runs.record import CLUSTER, Status
from windlass.runs.store import RunWriter, Store

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations
    from windlass.engines.base import OpenPort
    from windlass.engines.checks import ObjectChange
    from windlass.engines.exported import Manifests
    from windlass.engines.kubernetes.access.exec_copy import RunPods
    from windlass.engines.kubernetes.running.backend import KubernetesBackend
    from windlass.engines.kubernetes.supervisor.runs import ClusterSupervised
    from windlass.runs.context import Context
    from windlass.runs.metrics import Series
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget
    from windlass.worker.tarpipe import Received

CLEAN_AGAIN_SECONDS = 30.0
"""Seconds between two tries of a cleanup that failed because the cluster was unreachable."""


class KubernetesEngine(ServiceObjects, SupervisedEngine):
    """Engine for cluster runs with a record on this machine; `target.py` handles runs without one."""

    kind: ClassVar[str] = "kubernetes"
    is_remote: ClassVar[bool] = True
    has_list_prices: ClassVar[bool] = True
    runs_services: ClassVar[bool] = True
    _supervisor = supervisor_program("windlass.engines.kubernetes.running.backend:KubernetesBackend", "-I")
    _supervised: ClusterSupervised | None = None

    # -- targets ------------------------------------------------------------------------------------------------------

    @classmethod
    @override
    def make_plan(cls, job: Job, target: KubernetesTarget, run_id: str, base: Path, context: Context) -> Plan:
        """Plans a run, and validates its objects with a server-side dry run, which creates none."""
        from windlass.engines.kubernetes.planning.dry_run import dry_run
        from windlass.engines.kubernetes.planning.facts import boot_program, read_facts
        from windlass.engines.kubernetes.planning.plan import plan

        facts = read_facts(job, target, base=base, environ=context.environ)
        made = plan(job, target, facts, run_id, boot_program())
        if facts.cluster is None or any(note.blocks for note in made.notes):
            return made
        return replace(made, notes=(*made.notes, *dry_run(made)))

    @classmethod
    @override
    def export(cls, plan: Plan, context: Context) -> Manifests:
        from windlass.engines.kubernetes.planning.export import manifests
        from windlass.engines.travel import planned_code

        plan.require_runnable()
        return manifests(plan, planned_code(plan), context.now())

    @classmethod
    @override
    def check(cls, target: KubernetesTarget, context: Context) -> CheckReport:
        from windlass.engines.kubernetes.reading.preflight.report import check

        return check(target, context.environ)

    @classmethod
    @override
    def check_network(
        cls, report: CheckReport, target: KubernetesTarget, context: Context, on_line: Callable[[str], None]
    ) -> CheckReport:
        """Checks the network between two pods."""
        from windlass.engines.kubernetes.reading.preflight.report import check_network

        return check_network(report, target, context.environ, on_line)

    @classmethod
    @override
    def role(cls, target: KubernetesTarget, context: Context) -> list[dict[str, Any]]:
        from windlass.engines.kubernetes.reading.preflight.report import role

        return role(target, context.environ)

    @classmethod
    @override
    def setup_objects(cls, target: KubernetesTarget, context: Context) -> list[dict[str, Any]]:
        from windlass.engines.kubernetes.reading.preflight.setup import objects

        return objects(target, context.environ)

    @classmethod
    @override
    def setup(cls, target: KubernetesTarget, context: Context, *, remove: bool = False) -> list[ObjectChange]:
        """Creates or removes the supervisors' service account with its Role."""
        from windlass.engines.kubernetes.reading.preflight import setup

        return (setup.remove if remove else setup.create)(target, context.environ)

    @classmethod
    @override
    def instance_type(cls, plan: Plan) -> str | None:
        """Returns the instance type that the job requests, or the only type that its node pools provision."""
        if asked := plan.job.get("resources", {}).get("instance"):
            return str(asked)
        pools = _pools_of(plan)
        types = {one for pool in pools for one in pool.instance_types}
        return types.pop() if len(types) == 1 and all(pool.instance_types for pool in pools) else None

    @classmethod
    @override
    def is_spot(cls, plan: Plan) -> bool:
        """Returns whether all node pools that match the run's pods provision only spot capacity."""
        pools = _pools_of(plan)
        return bool(pools) and all(pool.capacity_types == ("spot",) for pool in pools)

    # -- runs ---------------------------------------------------------------------------------------------------------

    @override
    def status(self, run_id: str) -> Status:
        status = self.store.status(run_id)
        if status.supervision.supervisor != CLUSTER:
            return super().status(run_id)
        status = self._in_cluster.with_outputs(self._in_cluster.status(status))
        return self._in_cluster.with_missing_lines(status)

    @override
    def statuses(self, recorded: Iterable[Status]) -> list[Status]:
        """Returns current statuses; records in clusters are read in parallel, with one list request per namespace."""
        every = list(recorded)
        inside = [one for one in every if one.supervision.supervisor == CLUSTER]
        found = {one.id: one for one in super().statuses(one for one in every if one.supervision.supervisor != CLUSTER)}
        with contextlib.suppress(WindlassError):
            states = self._in_cluster.states(inside) if inside else ()
            found |= {one.status.id: self._in_cluster.with_outputs(one.status) for one in states}
        return [found.get(one.id, one) for one in every]

    @override
    def states(self, statuses: Iterable[Status], now: float, *, is_thorough: bool = False) -> list[RunState]:
        from windlass.engines.kubernetes.reading.discovery.snapshot import states

        every = list(statuses)
        inside = {one.id: one for one in every if one.supervision.supervisor == CLUSTER and not one.phase.is_terminal}
        others = (one for one in every if one.id not in inside)
        found = {state.status.id: state for state in states(others, self.store, now, is_thorough=is_thorough)}
        if inside:
            found |= {state.status.id: state for state in self._in_cluster.states(inside.values())}
        return [found[one.id] for one in every]

    @override
    def state(self, run_id: str, now: float) -> RunState:
        """Returns the state of a run, with its current note, which another user may have written."""
        found = super().state(run_id, now)
        return found if found.stale else replace(found, status=found.status.with_note(self.note(run_id)))

    @override
    def note(self, run_id: str) -> str:
        """Returns the note on a run: the note in the cluster if the record is there, or the last known note if the
        cluster does not answer.
        """
        before = super().note(run_id)
        if not self._is_in_cluster(run_id):
            return before
        try:
            client = self._in_cluster.client(run_id)
        except WindlassError:  # for example, the kubeconfig context no longer exists
            return before
        found = at_once({"note": lambda: run_note.read(client, run_id)}).get("note")
        if not isinstance(found, str) or found == before:
            return before
        super().write_note(run_id, found)
        return found

    @override
    def write_note(self, run_id: str, text: str) -> None:
        """Writes the note on a run to the local record, and to the cluster if the run's record is there."""
        if self._is_in_cluster(run_id):
            run_note.write(self._in_cluster.client(run_id), run_id, text)
        super().write_note(run_id, text)

    @override
    def stop(self, run_id: str, *, now: bool = False) -> None:
        status = self.status(run_id)
        if status.supervision.supervisor == CLUSTER and not status.phase.is_terminal:
            self._in_cluster.stop(run_id, now=now)
        else:
            super().stop(run_id, now=now)

    @override
    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        if plan is not None:
            plan.require_runnable()
            self._require_same_place(run_id, plan)
        if not self._is_in_cluster(run_id):
            return super().resume(run_id, plan, checkpoint)
        self.status(run_id)  # refreshes the local record: another machine may have resumed the run
        writer = self._writer_of_ended(run_id)
        if writer is None:
            raise UsageError(
                f"{run_id} has not ended: it is {self.store.status(run_id).phase}", f"windlass logs -f {run_id}"
            )

        with contextlib.closing(writer):
            require_resumable(writer.status)
            before = self.store.plan(run_id)
            if plan is not None and before.only(CodeStep).is_imported:
                raise UsageError(
                    f"{run_id} was submitted on another machine, which has its code: change it there",
                    f"as it was: windlass resume {run_id}",
                )
            with contextlib.closing(self._backend(plan or before, self.store.run_dir(run_id))) as its:
                self._in_cluster.resume(writer, its, plan, checkpoint)
        return self.status(run_id)

    def _require_same_place(self, run_id: str, plan: Plan) -> None:
        """Raises UsageError if the target's changed settings would move the run to another namespace, or its supervisor
        into or out of the cluster.
        """
        name, again = plan.target, f"start a new run: windlass rerun {run_id}"
        was, now = (
            f"namespace {place.namespace} of context {place.context}"
            for place in (one.only(ClusterStep) for one in (self.store.plan(run_id), plan))
        )
        if was != now:
            raise UsageError(
                f"{run_id} is in {was}, but target {name} names {now}", f"change the target back; or {again}"
            )
        is_inside, would_be = self._is_in_cluster(run_id), self._supervised_by(plan) == CLUSTER
        if is_inside and not would_be:
            raise UsageError(
                f"{run_id} is supervised in the cluster, and with this change it would be by this machine",
                f"set supervisor: cluster in target {name} to see what it lacks; or {again}",
            )
        if would_be and not is_inside:
            raise UsageError(
                f"{run_id} is supervised by a machine, and with this change it would be in the cluster",
                f"set supervisor: machine in target {name}; or {again}",
            )

    @contextlib.contextmanager
    @override
    def logs(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
        inside = self._is_in_cluster(run_id)
        with self._in_cluster.logs(run_id, follow=follow) if inside else super().logs(run_id, follow=follow) as found:
            yield found

    @override
    def metrics(self, run_id: str) -> tuple[Series, ...]:
        status = self.store.status(run_id, with_progress=False)
        if status.supervision.supervisor == CLUSTER:
            self._in_cluster.copy_metrics(status)
        return super().metrics(run_id)

    def import_run(self, client: Client, context: str, kubeconfig: str, run_id: str) -> bool:
        """Imports the record of a run from its cluster; returns False if the cluster has no record. Raises Refused,
        Unreachable, StoreError.
        """
        from windlass.engines.kubernetes.objects.namespace import ClusterNamespace

        return self._in_cluster.import_run(client, ClusterNamespace(context, client.namespace, kubeconfig), run_id)

    @override
    def staleness(self) -> Callable[[Status], str]:
        from windlass.engines.kubernetes.reading.discovery.snapshot import Staleness

        return Staleness(self.store).of

    @override
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
        with self._files(run_id) as files:
            return files.execute(node, rank, command, stdin, stdout, stderr)

    @contextlib.contextmanager
    @override
    def ports(self, run_id: str) -> Iterator[OpenPort]:
        from windlass.engines.kubernetes.access.port_forward import RunPorts

        with self._client_of(run_id) as client:
            yield RunPorts(client, run_id).open

    @override
    def fetch(self, run_id: str, node: int, path: str, local: Path, on_progress: Callable[[int], None]) -> Received:
        """Copies a file of a run; collected outputs are copied from the run's folder on this machine."""
        if (here := self._fetched(run_id, path)) is not None:
            return copying.copy(here, local, on_progress, Path(path).name)
        with self._files(run_id) as files:
            return files.fetch(node, path, local, on_progress)

    def _fetched(self, run_id: str, path: str) -> Path | None:
        """Returns the local path of outputs that were collected from an ended run; None if `path` must be read from a
        pod or a claim.

        Raises UsageError, EngineError, OSError if collected outputs cannot be fetched to this machine.
        """
        status = self.store.status(run_id, with_progress=False)
        parts = PurePosixPath(layout.RESULTS, path).parts[len(PurePosixPath(layout.RESULTS).parts) :]
        is_output = PurePosixPath(layout.RESULTS, path).is_relative_to(layout.OUTPUT)
        if not (is_output and status.phase.is_terminal and status.files.collected is not None):
            return None
        if status.supervision.supervisor == CLUSTER:
            self._in_cluster.fetch_outputs(status, is_patient=True)
        return self.store.run_dir(run_id).joinpath(*parts)

    @override
    def put(self, run_id: str, node: int, local: Path, path: str, on_progress: Callable[[int], None]) -> Received:
        with self._files(run_id) as files:
            return files.put(node, local, path, on_progress)

    @override
    def results(self, run_id: str) -> ResultsLocation:
        from windlass.engines.kubernetes.access.exec_copy import results_claim
        from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
        from windlass.engines.kubernetes.objects.planned import attempt_objects

        folder = self.store.run_dir(run_id) / "output"
        copied = str(folder) if folder.is_dir() and any(folder.iterdir()) else ""
        found = results_claim(pod_spec(attempt_objects(self.store.plan(run_id))))
        if found is None:
            elsewhere = "" if copied else self._in_cluster.elsewhere(run_id)
            return ResultsLocation("pods", layout.OUTPUT, copied=copied, elsewhere=elsewhere)
        path = str(PurePosixPath(found["mount"].get("subPath", ""), "output"))
        return ResultsLocation("claim", path, found["volume"]["persistentVolumeClaim"]["claimName"], copied)

    @override
    def list_results(self, run_id: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        with self._files(run_id) as files:
            return files.list_results(self.checkpoint_dir(run_id))

    @override
    def list_checkpoints(self, run_id: str) -> Mapping[str, Any]:
        with self._files(run_id) as files:
            return files.list_checkpoints(self.checkpoint_dir(run_id))

    @contextlib.contextmanager
    def _files(self, run_id: str) -> Iterator[RunPods]:
        from windlass.engines.kubernetes.access.exec_copy import RunPods

        with self._client_of(run_id) as client:
            yield RunPods(client, self.store.plan(run_id), self.store.status(run_id))

    @override
    def _client_of(self, run_id: str) -> contextlib.closing[Client]:
        place = self.store.plan(run_id).only(ClusterStep)
        return contextlib.closing(Client(place.context, place.namespace, place.kubeconfig))

    def observe(self, run_id: str) -> Observations:
        """Returns all observations of a run, for its diagnosis. Raises NoSuchRun."""
        from windlass.engines.kubernetes.reading.observe import observe

        status = self.status(run_id)
        if status.supervision.supervisor == CLUSTER and not self._in_cluster.is_stale(run_id):
            self._in_cluster.read_logs(run_id)
            status = self._in_cluster.with_missing_lines(status)
        return observe(self.store, status)

    @override
    def only_copy(self, run_id: str) -> str:
        """Describes the claim that removing an unfinished or failed run would delete; empty if there is none."""
        from windlass.engines.kubernetes.running import shutdown

        if self.store.status(run_id).phase not in RESUMABLE or self.results(run_id).kind != "claim":
            return ""
        with self._client_of(run_id) as client:
            return shutdown.only_copy(client, run_id)

    @override
    def still_running(self, run_id: str) -> list[str]:
        """Returns the names of an ended run's pods that still run. Raises EngineError."""
        from windlass.engines.kubernetes.running import shutdown

        plan, run_dir = self.store.plan(run_id), self.store.run_dir(run_id)

        def look() -> list[str]:
            with contextlib.closing(self._backend(plan, run_dir)) as backend:
                return shutdown.live_pods(backend.client, run_id)

        answer = at_once({"pods": look}).get("pods")  # `at_once` has a time limit, since the user waits
        if answer is None:
            raise EngineError(f"the cluster has not answered within {ANSWER_SECONDS:g} s")
        if isinstance(answer, WindlassError):  # for example, the kubeconfig context no longer exists
            raise EngineError(answer.message, answer.hint) from answer
        return answer

    def _backend(self, plan: Plan, run_dir: Path) -> KubernetesBackend:
        # imported here, since listing runs does not need this module
        from windlass.engines.kubernetes.running.backend import KubernetesBackend

        return KubernetesBackend(plan, run_dir)

    def _supervised_by(self, plan: Plan) -> str:
        return CLUSTER if plan.first(SupervisorStep) else ""

    def _now(self, plan: Plan) -> float:
        if self._supervised_by(plan) != CLUSTER:
            return time.time()
        with contextlib.closing(self._backend(plan, self.store.run_dir(plan.run_id))) as backend:
            # the run's time limit counts from the cluster's clock, whose time is in each response
            backend.client.find("v1", "ConfigMap", layout.selector(plan.run_id))
            return time.time() + backend.client.ahead

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        from windlass.engines.kubernetes.running.expiry import sweep
        from windlass.supervise.recorder import Recorder

        with contextlib.closing(self._backend(plan, self.store.run_dir(plan.run_id))) as backend:
            owner = backend.create_shared()
            if writer.status.supervision.supervisor == CLUSTER:
                self._in_cluster.start(backend, owner, writer.status, writer.events())
            backend.create_first(Recorder(writer), owner)
            with contextlib.suppress(WindlassError, OSError):
                sweep(self.store, backend.client, plan.target, time.time())

    def _start_supervisor(self, writer: RunWriter) -> None:
        if writer.status.supervision.supervisor != CLUSTER:
            super()._start_supervisor(writer)

    @override
    def reconnected(self, store: Store) -> KubernetesEngine:
        """Returns a copy with another connection to the store. Connections to clusters are kept, unless a parent
        process opened them.
        """
        engine = copy.copy(self)
        engine.store, engine._supervised = store, self._in_cluster.reconnected(store)
        return engine

    @property
    def _in_cluster(self) -> ClusterSupervised:
        """Manager of the runs whose supervisors are in their clusters; created on first use."""
        if self._supervised is None or self._supervised.pid != os.getpid():
            from windlass.engines.kubernetes.supervisor.runs import ClusterSupervised

            self._supervised = ClusterSupervised(self.store)
        return self._supervised

    def _is_in_cluster(self, run_id: str) -> bool:
        return self.store.status(run_id, with_progress=False).supervision.supervisor == CLUSTER

    def _end_leftovers(self, run_id: str, *, now: bool) -> None:
        from windlass.engines.kubernetes.running import shutdown

        plan = self.store.plan(run_id)
        with contextlib.closing(self._backend(plan, self.store.run_dir(run_id))) as backend:
            shutdown.end_leftovers(backend.client, run_id, now=now)

    def _after_end(self, status: Status) -> Status:
        """Retries a failed cleanup; adds a condition to a lost run whose pods still run."""
        from windlass.engines.kubernetes.running.backend import UNFINISHED

        run_dir = self.store.run_dir(status.id)
        with contextlib.suppress(WindlassError, OSError):
            if time.time() - (run_dir / UNFINISHED).stat().st_mtime > CLEAN_AGAIN_SECONDS:
                self._clean_up(status.id)
        if status.phase is not Phase.LOST:
            return status
        try:
            left = self.still_running(status.id)
        except WindlassError:
            return status
        if not left:
            return status
        message = f"pods of this run still run in the cluster ({', '.join(left[:4])}): windlass stop {status.id}"
        return status.with_condition(ConditionChanged("PodsStillRunning", message, status.times.ended_at))

    def _clean_up(self, run_id: str) -> None:
        from windlass.supervise.recorder import Recorder

        writer = self.store.writer(run_id)
        if writer is None:
            return
        with contextlib.closing(writer), contextlib.closing(self._backend_of(run_id)) as backend:
            backend.clean_up(Recorder(writer), is_patient=False)


def _pools_of(plan: Plan) -> list[NodePool]:
    return [pool for step in plan.every(NodePoolsStep) for pool in step.pools]
