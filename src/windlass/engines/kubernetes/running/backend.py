"""Backend of a cluster: creates and deletes the objects of a run. Every step can be repeated, since existing objects
are kept.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from windlass.compat import override
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import ExecControl, PodControl
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.lease import Lease, held_elsewhere, holder_of
from windlass.engines.kubernetes.access.unavailable import is_passing, refuse, unavailable
from windlass.engines.kubernetes.objects import layout, manifests, pod_assignment
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.transfer_manifests import filled
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.reading.preflight.capacity import CapacityProbe
from windlass.engines.kubernetes.running import code_store, deletion, markers, reuse, shutdown
from windlass.engines.kubernetes.running.attempt import PodAttempt
from windlass.engines.kubernetes.running.attempt_start import AttemptStart
from windlass.engines.kubernetes.running.collection import ExecFetch, Fetch, OutputsCollection, lost_words
from windlass.engines.kubernetes.running.exposed import conceal
from windlass.engines.kubernetes.running.job_transfer import JobTransfer
from windlass.engines.kubernetes.running.spares import Spares
from windlass.engines.kubernetes.running.transfers import RunTransfers
from windlass.errors import EngineError
from windlass.plan.compose import compose
from windlass.plan.plan import Plan
from windlass.plan.steps import (
    AttemptStep,
    CheckJobStep,
    ClaimStep,
    ClusterStep,
    CodeStep,
    CollectStep,
    DataClaimStep,
    ManifestStep,
    MountClaimStep,
    MountVolumeStep,
    NetworkPolicyStep,
    ObjectStep,
    StageJobStep,
    TransferStep,
)
from windlass.runs import node_events
from windlass.runs.clock import Clock
from windlass.runs.events import PodsReused, RunEnding, Warned, entries, of_newest_attempt
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.spec.labels import SERVICE_LABEL
from windlass.supervise.backend import Backend, TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import OUTPUTS_INCOMPLETE, NodeEnded, NodeStarted

SENDERS: Final = 8
"""Number of objects created in parallel."""
CLEAN_SECONDS: Final = 20.0
"""Seconds for which the cleanup after a run is retried while the cluster is unavailable; `resume` waits longer for the
cleanup."""
RETRY_SECONDS: Final = 1.0
STARTED: Final = "started"
"""Marker file in an attempt's folder: all objects of the attempt were created."""
UNFINISHED: Final = "cleanup-pending"
"""Marker file in the folder of an ended run: its objects may still have to be cleaned up."""
MOST_STEPS: Final = 10**8
"""Names of Jobs contain a step modulo this number, since they have no space for more digits."""


class KubernetesBackend(Backend):
    """Backend of one run in a namespace of a cluster."""

    outlives_supervisor = True

    def __init__(
        self, plan: Plan, run_dir: Path, control: PodControl | None = None, fetch: Fetch | None = None
    ) -> None:
        """`control` sends requests to the pods, and `fetch` copies their outputs to this machine; by default, both run
        commands in the pods.

        Raises UsageError for a missing context, EngineError for unusable credentials.
        """
        self.plan = plan
        self._run_dir = run_dir
        cluster = plan.only(ClusterStep)
        self.client = Client(cluster.context, cluster.namespace, cluster.kubeconfig)
        self.control = control or ExecControl(self.client, plan.nodes.worker_python)
        self.via = cluster.via
        self.spares = Spares(self.client, self.control, plan, run_dir)
        self.capacity = CapacityProbe(self.client, plan)
        self._home = run_dir.parent.parent
        self.lease = Lease(self.client, plan.run_id, holder_of(self._home))
        self._outputs_max = collect.max_bytes if (collect := plan.first(CollectStep)) is not None else 0
        """Maximum bytes of outputs that are collected from all pods; 0 if outputs are not collected."""
        fetch = fetch or ExecFetch(self.client, plan.nodes.worker_python)
        collection = OutputsCollection(self.client, self.control, fetch, plan.run_id, run_dir, self._outputs_max)
        self._transfers = RunTransfers.of(plan, self._transfer, collection)
        self.uploads_outputs = self._transfers.outputs.is_wanted
        self._attempt: PodAttempt | None = None
        """Newest attempt that this supervisor has started or adopted."""
        self._is_kept_alive = False
        self._is_released = False
        """Whether the last attempt's pods were notified that no attempt follows."""
        self._wake: Callable[[], None] = lambda: None

    @override
    def close(self) -> None:
        self.client.close()

    # -- the Lease ----------------------------------------------------------------------------------------------------

    @override
    def held_elsewhere(self) -> str:
        """Returns the other machine that holds the run's Lease; empty if none does, or if the cluster does not answer,
        since the supervisor detects another holder later.
        """
        with contextlib.suppress(EngineError):
            return held_elsewhere(self.client, self.plan.run_id, self._home, time.time())
        return ""

    @override
    def hold(self) -> bool:
        """Acquires the run's Lease, and renews it in the background from then on; returns whether it was acquired."""
        try:
            if not self.lease.ensure():
                return False
        except (Refused, Unreachable) as error:
            raise unavailable(error) from error
        if not self._is_kept_alive:
            self._is_kept_alive = True
            self.lease.keep(lambda: self._wake())
        return True

    @property
    @override
    def is_lost_to_another(self) -> bool:
        return bool(self.lease.lost_to)

    @override
    def trouble(self) -> TargetUnavailable | None:
        """Returns the error of a background thread that has failed for some time; None if all threads work."""
        failing = self.client.health.failing()
        if failing is None:
            return None
        what, error = failing
        if isinstance(error, Refused | Unreachable):
            return unavailable(error, "the pods continue to train")
        return TargetUnavailable("NotObserved", f"{what}: {error.message}; the pods continue to train", error.hint)

    @override
    def lives(self) -> bool:
        """Returns whether any pod of the run has not ended; True if the cluster does not answer."""
        try:
            return bool(shutdown.live_pods(self.client, self.plan.run_id))
        except EngineError:
            return True

    # -- objects of all attempts --------------------------------------------------------------------------------------

    def create_first(self, record: Recorder, owner: Mapping[str, Any]) -> None:
        """Creates the first attempt's pods early, since a supervisor takes seconds to start. Removes the end marker of
        a resumed run. Raises EngineError.
        """
        if record.status.phase.is_terminal:
            markers.forget(self.client, self.plan.run_id)
        if not record.status.attempts and not self.plan.first(StageJobStep) and not self.capacity.is_elastic:
            # Pods are not created early if they would wait for staged data, or if free capacity decides on their
            # number. The supervisor repeats a refused request, and records the refusal.
            with contextlib.suppress(EngineError):
                AttemptStart(self, record, self._folder(1), 1, range(self.plan.num_nodes)).in_new_pods(owner)

    def create_shared(self, owner: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Creates the objects that all attempts share, and returns the run's owner ConfigMap. Raises EngineError,
        UsageError.

        `owner` is the existing owner ConfigMap, for a run that must not be created again after its removal.
        """
        owner = owner or self.owner_config_map()
        claims = self.plan.manifests(ClaimStep)
        others = [*self.plan.manifests(ObjectStep)[1:], *self._missing_pieces(), *self._of_submission()]
        free, owned = (claims, others) if self._is_claim_kept() else ([], [*others, *claims])
        with ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(self.create, [*(manifests.owned(one, owner) for one in owned), *free]))
        return owner

    def _missing_pieces(self) -> list[Manifest]:
        """Returns the ConfigMaps with the code's pieces; empty if the cluster has all of them."""
        planned = {piece["metadata"]["name"] for piece in self.plan.only(CodeStep).pieces}
        found = self.client.find("v1", "ConfigMap", layout.selector(self.plan.run_id), limit="500")["items"]
        return [] if planned <= {one["metadata"]["name"] for one in found} else code_store.pieces(self.plan)

    def _of_submission(self) -> list[Mapping[str, Any]]:
        """Returns the run's objects that only the user's machine creates; creates objects that several runs share."""
        code = self.plan.only(CodeStep)
        if not code.is_imported:  # the machine that submitted an imported run has created these objects
            for made in self.plan.manifests(DataClaimStep, MountVolumeStep, MountClaimStep):
                self.client.create_if_absent(made)
            if code.source:
                code_store.send(code.source, code.bytes, lambda: code_store.packed(self.plan))
        return [*self.plan.manifests(NetworkPolicyStep), *map(filled, self.plan.manifests(TransferStep))]

    def _is_claim_kept(self) -> bool:
        return self.plan.only(ClusterStep).keeps_claim

    def owner_config_map(self) -> Mapping[str, Any]:
        """Returns the run's owner ConfigMap, which is created if missing. Raises EngineError."""
        return self.create(self.plan.manifests(ObjectStep)[0])

    def create(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Creates an object, or returns the existing one if it belongs to the run. Raises EngineError."""
        if (made := self.client.create_if_absent(manifest)) is not None:
            return made
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        there = self.client.get(manifest["apiVersion"], kind, name)
        if there["metadata"].get("labels", {}).get(layout.RUN_LABEL) != self.plan.run_id:
            raise EngineError(f"{kind} {name} exists already, and is not of this run", "remove it, or run again")
        return there

    def _folder(self, number: int) -> Path:
        return self._run_dir / f"attempt-{number}"

    # -- files --------------------------------------------------------------------------------------------------------

    def _transfer(self, kind: type[ManifestStep], step: int | None = None) -> JobTransfer | None:
        """Returns the transfer by the plan's Job of this kind, or None if there is none. `step` is the checkpoint's
        step, and becomes part of the Job's name.
        """
        for made in self.plan.manifests(kind):
            if step is not None:
                meta = made["metadata"]
                made = {**made, "metadata": {**meta, "name": f"{meta['name']}-{step % MOST_STEPS}"}}
            return JobTransfer(
                self.client,
                made,
                lambda made: self.create(manifests.owned(made, self.create_shared())),
                warns=kind is not CheckJobStep,
            )
        return None

    @override
    def stage(self, record: Recorder, clock: Clock) -> bool:
        return self._transfers.staging.turn(record, clock)

    @override
    def upload_at_checkpoint(self, record: Recorder, clock: Clock) -> None:
        self._transfers.checkpoints.turn(record, clock)

    @override
    def check_outputs(self, record: Recorder, clock: Clock) -> None:
        self._transfers.check.turn(record, clock)

    @override
    def upload(self, record: Recorder, clock: Clock) -> bool:
        """Ends pods that wait for another attempt, to free their resources, and then uploads the outputs."""
        if not self._is_released:
            self._is_released = True
            self._transfers.checkpoints.end()
            with contextlib.suppress(EngineError):  # after a failure, `clean_up` releases the pods
                self._release_pods(record)
        return self._transfers.outputs.turn(record, clock)

    @override
    def nodes_with_outputs(self, record: Recorder) -> tuple[int, ...]:
        """Returns the nodes that reported outputs at their end; warns about lost nodes."""
        if not self._outputs_max:
            return ()
        number = len(record.status.attempts)
        ends = {node: self._end_of(number, node) for node in self._members(record)}
        nodes = tuple(node for node, end in ends.items() if isinstance(end, NodeEnded) and end.outputs)
        if nodes:  # if no node has outputs, a lost node may have had none either
            lost = [node for node, end in ends.items() if isinstance(end, NodeStarted)]
            for message in lost_words(lost, "it has ended without reporting"):
                record.note(Warned(message, OUTPUTS_INCOMPLETE))
        return nodes

    def _end_of(self, number: int, node: int) -> NodeStarted | NodeEnded | None:
        """Returns the reported end of a node in an attempt, or its start if no end was reported; None if the node has
        not started.
        """
        path = self._folder(number) / f"node-{node}.events"
        found = [event for event in node_events.read(path) if isinstance(event, NodeStarted | NodeEnded)]
        return found[-1] if found else None

    @override
    def collect(self, record: Recorder, nodes: Sequence[int], clock: Clock) -> bool:
        pods = dict(zip(self._members(record), self._assignment(record).pods, strict=True))
        ids = {node: pods[node] for node in nodes if node in pods}
        seen = {} if self._attempt is None else self._attempt.running_pods(ids)
        return self._transfers.collection.turn(record, ids, seen, clock.wake)

    @override
    def remove(self) -> None:
        """Removes all objects of the run, except a claim that the job keeps."""
        shutdown.remove(self.client, self.plan.run_id)
        for claim in () if self._is_claim_kept() else self.plan.manifests(ClaimStep):
            self.client.delete("v1", "PersistentVolumeClaim", claim["metadata"]["name"])

    @property
    @override
    def removal_hint(self) -> str:  # type: ignore[override]
        kinds = dict.fromkeys((WORKLOADS[self.via].plural, "jobs", "pods", "services", "configmaps", "leases"))
        where = f"--context {self.client.context} -n {self.client.namespace}"
        which = layout.selector(self.plan.run_id)
        return f"to remove all its objects: kubectl {where} delete {','.join(kinds)} -l {which}"

    # -- attempts -----------------------------------------------------------------------------------------------------

    @override
    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> PodAttempt:
        """Starts the attempt in the previous attempt's pods that were kept alive, and in new pods for the other
        nodes.
        """
        try:
            if not self.hold():
                why = "another supervisor may still hold the run: its Lease has not expired, or is refused now"
                raise TargetUnavailable("HolderUnknown", why)
            attempt = AttemptStart(self, record, folder, number, members)
            if not attempt.in_running_pods():
                owner = self.create_shared()
                self._delete_others(record, number)
                attempt.in_new_pods(owner)
        except (Refused, Unreachable) as error:
            refuse(error)
        with contextlib.suppress(OSError):  # on a full disk, the start is repeated later, with existing objects kept
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / STARTED).touch()
        return self.adopt(folder, number, members, clock)

    @override
    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> PodAttempt:
        self.capacity.begin(members)
        self._wake = clock.wake
        specs = compose(self.plan.nodes, members)
        self._attempt = PodAttempt(self.client, self.plan, number, specs, folder, clock.wake, self.control)
        return self._attempt

    @override
    def is_started(self, folder: Path) -> bool:
        """Returns whether all pods of the attempt were created or have received their orders.

        Otherwise, the start is repeated, and all pods receive their orders again.
        """
        return (folder / STARTED).exists()

    @override
    def unreachable(self) -> set[int]:
        """Returns the missing nodes of an elastic run for whose pods the cluster has no capacity."""
        return self.capacity.missing()

    def keep_decision(self, record: Recorder, folder: Path, decided: PodsReused) -> None:
        """Stores in the attempt's folder which pods the attempt will reuse. Raises OSError."""
        pod_assignment.store_assignment(folder, decided)

    def _delete_others(self, record: Recorder, number: int) -> None:
        """Deletes the remaining objects of earlier attempts, so that none of their pods continues to train. Raises
        EngineError.
        """
        self.capacity.leave()
        kept = sorted({number, *self._kept_attempts(record, number)})
        self._delete_attempts(",".join(f"{layout.ATTEMPT_LABEL}!={one}" for one in kept))

    def _kept_attempts(self, record: Recorder, number: int) -> set[int]:
        """Returns the numbers of earlier attempts whose ended pods have the only copy of their ranks' output."""
        return set()

    def _delete_attempts(self, which: str = "") -> None:
        selector = ",".join(part for part in (layout.of_attempts(self.plan.run_id), which) if part)
        # owner objects are deleted before the objects that they refer to
        for made in reversed(attempt_objects(self.plan)):
            for one in self.client.find(made["apiVersion"], made["kind"], selector)["items"]:
                self.client.delete(made["apiVersion"], made["kind"], one["metadata"]["name"])

    # -- end of the run -----------------------------------------------------------------------------------------------

    @override
    def prepare_end(self, record: Recorder) -> None:
        """Creates a local marker file: the objects of the run must still be cleaned up."""
        with contextlib.suppress(OSError):
            (self._run_dir / UNFINISHED).touch()

    @override
    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        """Cleans up the run's objects. After a failure, the next command that reads the run tries again."""
        give_up, marker = time.monotonic() + (CLEAN_SECONDS if is_patient else 0.0), self._run_dir / UNFINISHED
        while True:
            try:
                self._clean_up_once(record)
                break
            except EngineError as error:
                if not is_passing(error) or time.monotonic() > give_up:
                    self._note_unfinished(record, error)
                    with contextlib.suppress(OSError):
                        marker.touch() if is_passing(error) else marker.unlink()
                    return
            time.sleep(RETRY_SECONDS)
        with contextlib.suppress(OSError):
            marker.unlink(missing_ok=True)
        self.lease.release()

    def _note_unfinished(self, record: Recorder, error: EngineError) -> None:
        message = f"could not clean up in the cluster after the end of the run: {error.message}; {self.removal_hint}"
        self._warn_once(record, message)

    @staticmethod
    def _warn_once(record: Recorder, message: str) -> None:
        if message not in [warned.message for warned in entries(record.writer.events(), Warned)]:
            record.note(Warned(message))

    def _clean_up_once(self, record: Recorder) -> None:
        """Cleans up once. Pods are kept for `kubectl logs` until the run is removed, except pods that sidecar
        containers would keep running. Raises EngineError.
        """
        self.capacity.leave()
        status = record.status
        if SERVICE_LABEL in status.about.labels:
            conceal(self.client, self.plan.run_id)
        well = status.phase is Phase.SUCCEEDED
        markers.put_end(self.client, self.plan.run_id, stopped=status.supervision.stop_requested, well=well)
        if WORKLOADS[self.via].remakes(self.plan.only(AttemptStep).manifest) and status.attempts:
            shutdown.end_owner_objects(self.client, self.plan.run_id, WORKLOADS[self.via])
        number = len(status.attempts)
        folder = self._folder(number)
        if number and self.is_started(folder):
            self._release_pods(record)
        elif number and self._assignment(record).reused:
            for name in shutdown.live_pods(self.client, self.plan.run_id):  # live pods may have received an order
                self.client.delete("v1", "Pod", name)
        else:  # the attempt was not started, and none of its pods may start
            self._delete_attempts()
        self.spares.end(status)
        self._transfers.end()
        shutdown.delete_pods_with_sidecars(
            self.client,
            self.plan.run_id,
            lambda names: self._warn_once(
                record, f"the pods are deleted, with their logs: {', '.join(names)} ran on beside the ranks"
            ),
        )

    def _release_pods(self, record: Recorder) -> None:
        status = record.status
        has_failed = any(rank.exit_code != 0 for rank in status.ranks)
        # Pods with outputs, and failed pods beside them, were kept until the outputs were collected.
        have_outputs = any(one.nodes for one in entries(of_newest_attempt(record.writer.events()), RunEnding))
        nodes = self.plan.nodes
        if ((nodes.reuse_wait_seconds or nodes.outputs_max) and has_failed) or have_outputs:
            for made_for in {one.made_for for one in self._assignment(record).pods}:
                reuse.release(self.client, self.control, self.plan.run_id, made_for)

    def _members(self, record: Recorder) -> tuple[int, ...]:
        """Returns the node numbers of the last attempt, in order of place."""
        return record.status.attempts[-1].members

    def _assignment(self, record: Recorder) -> PodAssignment:
        """Returns which pods run the nodes of the last attempt."""
        number = len(record.status.attempts)
        return PodAssignment.of(self._folder(number), number, len(self._members(record)))

    @override
    def watch_node_deletion(self, store: Store) -> None:
        deletion.watch_deletion(store, self.plan.run_id, self.client)
