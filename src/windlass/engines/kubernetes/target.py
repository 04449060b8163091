"""Lists and controls runs in a namespace of a cluster through their objects, without a record on this machine."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from windlass.compat import override
from windlass.engines.base import ClaimFiles, Engine, OpenPort, TargetRuns, Watch
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.connect import connect, find_kubeconfig
from windlass.engines.kubernetes.access.errors import NotLoggedIn, Unreachable
from windlass.engines.kubernetes.reading.discovery import discovery
from windlass.engines.kubernetes.reading.discovery.phase import Seen
from windlass.engines.kubernetes.running.service_objects import ServiceObjects
from windlass.engines.values import RunState
from windlass.errors import EngineError, NoSuchRun, UsageError, WindlassError
from windlass.runs.events import ConditionChanged
from windlass.runs.phase import Phase
from windlass.runs.record import Status

if TYPE_CHECKING:
    from windlass.engines.deployments import Deployments
    from windlass.engines.kubernetes.engine import KubernetesEngine
    from windlass.spec.address import ClusterAddress
    from windlass.spec.targets import KubernetesTarget
    from windlass.storage.progress import Progress

POLL_SECONDS = 0.5


class ClusterRuns(ServiceObjects, TargetRuns):
    """Runs in a namespace of a cluster.

    Modules that only some commands need are imported in methods, since imports take half of the time of listing runs.
    """

    kind: ClassVar[str] = "kubernetes"
    final_phases: ClassVar[frozenset[Phase]] = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})
    """Phases from which a run cannot continue; `lost` is excluded, since the supervisor of a lost run may return."""

    _target: ClusterAddress | KubernetesTarget

    @functools.cached_property
    def _recorded(self) -> KubernetesEngine:
        from windlass.engines.kubernetes.engine import KubernetesEngine

        return KubernetesEngine(self.store)

    def _connected(self) -> contextlib.closing[Client]:
        return connect(self._target, self._context.environ)

    @override
    def _client_of(self, run_id: str) -> contextlib.closing[Client]:
        return self._connected()

    @contextlib.contextmanager
    @override
    def claim_files(self, claim: str) -> Iterator[ClaimFiles]:
        """Opens the files of a claim. Requires a complete target, not only the address of a cluster."""
        from windlass.engines.kubernetes.access.claim_files import claim_files

        with self._connected() as client, claim_files(client, cast("KubernetesTarget", self._target), claim) as files:
            yield files

    @override
    def deployments(self) -> Deployments:
        from windlass.engines.kubernetes.running.deployments import KubernetesDeployments

        return KubernetesDeployments(cast("KubernetesTarget", self._target), self._context.environ)

    @override
    def list_data(self, claim: str | None) -> Sequence[Mapping[str, Any]]:
        from windlass.engines.kubernetes.running.claim_sets import list_sets

        wanted = self._claim_of_data(claim)
        with self._connected() as client:
            return list_sets(client, cast("KubernetesTarget", self._target), wanted)

    @override
    def stage_data(
        self,
        claim: str | None,
        source: str,
        progress: Progress,
        on_line: Callable[[str], None],
        *,
        secrets: Sequence[str] = (),
        service_account: str | None = None,
    ) -> Mapping[str, Any]:
        from windlass.engines.kubernetes.running.claim_staging import stage_set
        from windlass.spec.sections import DataClaim

        target = cast("KubernetesTarget", self._target)
        name = self._claim_of_data(claim)
        wanted = target.data if target.data is not None and target.data.claim == name else DataClaim(claim=name)
        with self._connected() as client:
            found = stage_set(
                client, target, wanted, source, progress, on_line, keys=secrets, service_account=service_account
            )
        return {**found, "claim": name}

    @override
    def remove_data(self, claim: str | None, which: str) -> Mapping[str, Any]:
        from windlass.engines.kubernetes.running.claim_sets import remove_set

        wanted = self._claim_of_data(claim)
        with self._connected() as client:
            return remove_set(client, cast("KubernetesTarget", self._target), wanted, which)

    def _claim_of_data(self, claim: str | None) -> str:
        from windlass.spec.sections import DataClaim

        return claim or (cast("KubernetesTarget", self._target).data or DataClaim()).claim

    # -- all runs -----------------------------------------------------------------------------------------------------

    @override
    def list(self, *, is_everywhere: bool = False) -> list[RunState]:
        now = self._context.now()
        with self._connected() as client:
            try:
                seen = discovery.everywhere(client, now) if is_everywhere else discovery.look(client).runs(now)
                if not seen and not is_everywhere:
                    client.require_namespace()
            except Unreachable as error:
                away = "" if isinstance(error, NotLoggedIn) else f"cluster {self._target.name} does not answer: "
                raise EngineError(f"{away}{error.message}", self._hint_of_record() or error.hint) from error
        return [self._state_of(one) for one in seen]

    def _hint_of_record(self) -> str:
        num_here = sum(status.target == self._target.name for status in self.store.statuses(unfinished=True))
        return (
            "windlass ps shows the last known states of the unfinished runs there of which this machine has a record "
            f"({num_here})"
            if num_here
            else ""
        )

    @contextlib.contextmanager
    @override
    def watch(self, run_id: str = "") -> Iterator[Watch]:
        """Watches runs with one watch request per kind of object."""
        from windlass.engines.kubernetes.reading.informer import Watched

        with self._connected() as client, contextlib.closing(Watched(client, run_id, self._state_of)) as watched:
            if not run_id and not watched.runs():
                client.require_namespace()
            yield watched

    def _state_of(self, seen: Seen) -> RunState:
        """Returns the state of a run; if this machine has a record of the run, the recorded status adds details."""
        state = seen.state(self._target.name)
        try:
            status = self.store.status(seen.id)
        except NoSuchRun:
            return state
        from windlass.engines.kubernetes.reading.discovery.snapshot import merged, signs

        if not status.phase.is_terminal:
            with contextlib.suppress(WindlassError):  # an unreadable record must not hide the other runs
                status = self._recorded.status(seen.id)
        sign = signs(status, self.store, self._context.now())
        if sign is not None:
            status = merged(status, seen, sign.as_of)[0]
        note = status.about.note if seen.objects.note is None else seen.objects.note
        return replace(
            state, status=replace(status.with_note(note), waits_for=status.waits_for or None), is_recorded=True
        )

    @override
    def find(self, run: str | None) -> tuple[Engine, str]:
        """Finds a run by id or name, in the local record if the cluster does not answer. Raises NoSuchRun, UsageError,
        EngineError.
        """
        try:
            with self._connected() as client:
                run_id = discovery.find(client, run, self._target.name)
        except Unreachable:
            if (known := self._known(run)) is None:
                raise
            return self._recorded, known
        try:
            self.store.status(run_id)
        except NoSuchRun:
            with self._connected() as client:
                kubeconfig = find_kubeconfig(self._target, self._context.environ)
                if not self._recorded.import_run(client, self._target.context, kubeconfig, run_id):
                    return self, run_id
        return self._recorded, run_id

    def _known(self, run: str | None) -> str | None:
        """Returns the id of the matching run of this target in the local record; None if there is none."""
        if run is None:
            here = (status.id for status in self.store.statuses() if status.target == self._target.name)
            return next(here, None)
        with contextlib.suppress(NoSuchRun):
            run_id = self.store.find(run)
            return run_id if self.store.status(run_id).target == self._target.name else None
        return None

    # -- runs without a record ----------------------------------------------------------------------------------------

    @override
    def status(self, run_id: str) -> Status:
        """Returns the status of a run, derived from its objects. Raises NoSuchRun, EngineError."""
        with self._connected() as client:
            return discovery.one(client, run_id).state(self._target.name).status

    @override
    def state(self, run_id: str, now: float) -> RunState:
        """Returns the state of a run with its pods, and the newest progress reported by the run's first node."""
        with self._connected() as client:
            seen = discovery.one(client, run_id)
            pods = discovery.pods(client, seen)
            state = seen.state(self._target.name)
            assert state.placement is not None
            return replace(
                state,
                status=replace(state.status, progress=discovery.progress(client, pods)),
                placement=replace(state.placement, pods=tuple(asdict(pod) for pod in pods)),
            )

    @contextlib.contextmanager
    @override
    def logs(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[Path, Callable[[], bool] | None]]:
        """Yields a temporary folder with a run's logs; with `follow`, a thread adds new lines. Raises EngineError."""
        import tempfile

        from windlass.engines.kubernetes.running.log_fetch import LogReader

        with (
            tempfile.TemporaryDirectory(prefix="windlass-logs-") as folder,
            self._connected() as client,
            contextlib.closing(LogReader(client, run_id, Path(folder))) as reader,
        ):
            if not reader.read() and not follow:
                raise EngineError(
                    f"{run_id} has no pod with a log",
                    "if the pods are deleted, the logs are on the machine that started the run",
                )
            if follow:
                reader.follow()
            yield Path(folder), reader.is_over if follow else None

    @override
    def grace_seconds(self, run_id: str) -> float:
        """Returns the run's grace period in seconds, read from the specs of its pods."""
        from windlass.engines.kubernetes.running import shutdown

        with self._connected() as client:
            return shutdown.grace_seconds(client, run_id)

    @override
    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Creates a stop request for the supervisor, and ends the pods. Raises NoSuchRun, EngineError."""
        from windlass.engines.kubernetes.running import shutdown

        with self._connected() as client:
            if discovery.one(client, run_id).phase not in self.final_phases:
                shutdown.stop(client, run_id, now=now)

    @override
    def wait(self, run_id: str, timeout: float | None = None) -> Status:
        """Waits for the end of a run, at most `timeout` seconds plus `END_SECONDS` for the end of its pods."""
        from windlass.engines.kubernetes.objects.pod_template import END_SECONDS

        give_up = None if timeout is None else time.monotonic() + timeout + END_SECONDS
        with self._connected() as client:
            while True:
                status = discovery.one(client, run_id).state(self._target.name).status
                if status.phase in self.final_phases:
                    return status
                if give_up is not None and time.monotonic() > give_up:
                    condition = ConditionChanged("PodsStillRunning", f"it is {status.phase}", self._context.now())
                    return status.with_condition(condition)
                time.sleep(POLL_SECONDS)

    @contextlib.contextmanager
    @override
    def ports(self, run_id: str) -> Iterator[OpenPort]:
        from windlass.engines.kubernetes.access.port_forward import RunPorts

        with self._connected() as client:
            yield RunPorts(client, run_id).open

    @override
    def only_copy(self, run_id: str) -> str:
        """Describes the claim that removing an unfinished or failed run would delete; empty if there is none."""
        from windlass.engines.kubernetes.running import shutdown

        with self._connected() as client:
            if discovery.one(client, run_id).phase is Phase.SUCCEEDED:
                return ""
            return shutdown.only_copy(client, run_id)

    @override
    def delete(self, run_id: str) -> None:
        """Deletes all objects of a run, except a claim with `keep: true`. Raises EngineError."""
        from windlass.engines.kubernetes.running import shutdown

        with self._connected() as client:
            shutdown.remove(client, run_id)

    @classmethod
    def unsupported(cls, command: str) -> UsageError:
        """Returns the error for a command that requires a record of the run on this machine."""
        return UsageError(f"{command} is not supported for runs that another machine started", "call it there")
