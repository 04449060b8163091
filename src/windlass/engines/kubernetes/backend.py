"""Backend of a cluster: creates and deletes the objects of a run. Every step may be repeated: what exists is kept."""

from __future__ import annotations

import base64
import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn

from windlass.code.pack import Packed
from windlass.engines.kubernetes import layout, manifests
from windlass.engines.kubernetes.api.client import Client, NotLoggedIn, Refused, Unreachable
from windlass.engines.kubernetes.api.lease import Lease, held_elsewhere, holder_of
from windlass.engines.kubernetes.attempt import PodAttempt, attempt_facts
from windlass.engines.kubernetes.mounts.planning import CLAIM_STEP, VOLUME_STEP
from windlass.engines.kubernetes.plan import PIECE_BYTES, attempt_objects, is_imported, numbered
from windlass.engines.kubernetes.pods import reuse
from windlass.engines.kubernetes.pods.collection import ExecFetch, Fetch, OutputsCollection, lost_words
from windlass.engines.kubernetes.pods.control import ExecControl, PodControl
from windlass.engines.kubernetes.pods.nodes import PodId, has_ended, pod_id, why_over
from windlass.engines.kubernetes.pods.spares import AttemptPods, Spares, described
from windlass.engines.kubernetes.preflight.capacity import Room
from windlass.engines.kubernetes.provisioning import deletion
from windlass.engines.kubernetes.transfers import code_store
from windlass.engines.kubernetes.transfers.job_transfer import JobTransfer
from windlass.engines.kubernetes.transfers.manifests import filled
from windlass.engines.kubernetes.workloads import WORKLOADS, shutdown, tombstones
from windlass.engines.kubernetes.workloads.base import Manifest
from windlass.engines.kubernetes.workloads.job import keeps_others
from windlass.engines.travel import planned_code
from windlass.errors import EngineError
from windlass.plan.compose import compose
from windlass.plan.plan import Plan
from windlass.runs import node_events
from windlass.runs.events import RunEnding, Warned, entries, of_newest_attempt
from windlass.runs.record import CLUSTER
from windlass.runs.store import Store
from windlass.supervise.backend import Backend, TargetUnavailable
from windlass.supervise.clock import Clock
from windlass.supervise.recorder import Recorder
from windlass.supervise.transfers import CheckpointUploads, DataStaging, OutputsUpload
from windlass.worker.protocol import NodeEnded, NodeSpec, NodeStarted

SENDERS: Final = 8
"""Objects that are created at once."""
BEHIND_SECONDS: Final = 20.0
"""How long an operator may not have seen an object that another one refers to."""
CLEAN_SECONDS: Final = 20.0
"""How long the cluster may keep a supervisor from cleaning up after the end of its run; `resume` waits for longer."""
RETRY_SECONDS: Final = 1.0
BEHIND_RETRY_SECONDS: Final = 0.1
PASSING: Final = (401, 429, 500, 502, 503, 504)
"""Answers of an API server that is busy, whose webhooks are not ready yet, or for which a login has expired."""
STARTED: Final = "started"
"""File in the folder of an attempt whose objects were all created."""
UNFINISHED: Final = "cleanup-pending"
"""File in the folder of a run that has ended and may have left something to do in the cluster."""
MOST_STEPS: Final = 10**8
"""The name of a Job has no room for more digits."""
END_SECONDS: Final = 5.0
"""How long owner objects may take to report their end after their pods."""
PODS_ARE_REUSABLE: Final = ("failure", "hang", "node-loss", "preemption")
"""Why attempts end without harm to all of their pods."""


class KubernetesBackend(Backend):
    """A namespace of a cluster, for one run."""

    outlives_supervisor = True

    def __init__(self, plan: Plan, run_dir: Path, control: PodControl | None = None) -> None:
        """`control` makes requests of the pods; without it, commands in the pods do.

        Raises UsageError for a context that is not there, EngineError for a login that cannot be used.
        """
        self.plan = plan
        self._run_dir = run_dir
        [cluster] = plan.requests("cluster")
        self.client = Client(cluster["context"], cluster["namespace"], cluster["kubeconfig"])
        self.control = control or ExecControl(self.client, plan.nodes.worker_python)
        self.via = cluster["via"]
        self._spares = Spares(self.client, self.control, plan, run_dir)
        self.room = Room(self.client, plan)
        self._home = run_dir.parent.parent
        self.lease = Lease(self.client, plan.run_id, holder_of(self._home))
        self._staging, self._upload = self._data_staging(), self._outputs_upload()
        self.uploads_outputs = self._upload.is_wanted
        self._uploads = self._checkpoint_uploads()
        self._outputs_max = next((int(one["max_bytes"]) for one in plan.requests("collect")), 0)
        """Bytes that outputs may have to be collected from the pods; 0: they are not."""
        self._collection = OutputsCollection(
            self.client, self.control, self._fetch(), plan.run_id, run_dir, self._outputs_max
        )
        self._is_kept_alive = False
        self._is_released = False
        """Whether the pods of the last attempt were told that no other follows."""
        self._wake: Callable[[], None] = lambda: None

    def close(self) -> None:
        """See `Backend`."""
        self.client.close()

    # -- who acts -----------------------------------------------------------------------------------------------------

    def held_elsewhere(self) -> str:
        """See `Backend`: by the run's Lease. Where the cluster does not answer, the supervisor will find out."""
        with contextlib.suppress(EngineError):
            return held_elsewhere(self.client, self.plan.run_id, self._home, time.time())
        return ""

    def hold(self) -> bool:
        """See `Backend`: by the run's Lease, which is renewed from then on."""
        try:
            if not self.lease.ensure():
                return False
        except (Refused, Unreachable) as error:
            raise _unavailable(error) from error
        if not self._is_kept_alive:
            self._is_kept_alive = True
            self.lease.keep(lambda: self._wake())
        return True

    @property
    def is_lost_to_another(self) -> bool:
        """See `Backend`."""
        return bool(self.lease.lost_to)

    def trouble(self) -> TargetUnavailable | None:
        """See `Backend`: what its background threads fail with, once that has lasted."""
        failing = self.client.health.failing()
        if failing is None:
            return None
        what, error = failing
        if isinstance(error, Refused | Unreachable):
            return _unavailable(error, "the pods train on")
        return TargetUnavailable("NotObserved", f"{what}: {error.message}; the pods train on", error.hint)

    def lives(self) -> bool:
        """See `Backend`: whether any pod of the run has not ended; where the cluster does not answer, one may."""
        try:
            return bool(shutdown.live_pods(self.client, self.plan.run_id))
        except EngineError:
            return True

    # -- what all attempts share --------------------------------------------------------------------------------------

    def create_first(self, record: Recorder, owner: Mapping[str, Any]) -> None:
        """Create the pods of the first attempt, or forget the end of the last one: a supervisor takes a moment to
        start. Raises EngineError.
        """
        if record.status.attempts:
            tombstones.forget(self.client, self.plan.run_id)
        elif not self.plan.requests("stage-job") and not self._is_elastic():
            # Where data is staged, pods would wait for it; with a range of nodes, capacity decides. What is refused now
            # is refused again by the supervisor, which records it.
            with contextlib.suppress(EngineError):
                specs = self._specs(record, 1, range(self.plan.num_nodes))
                self._create_pods(record, 1, self._spares.beside(specs), owner)

    def _is_elastic(self) -> bool:
        return bool(self.plan.policy.get("min_nodes", self.plan.num_nodes) < self.plan.num_nodes)

    def create_shared(self, owner: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Create what all attempts share, and give the object that owns it. Raises EngineError, UsageError.

        `owner` is that object of a run that must exist: one that was removed is not created again.
        """
        anchor, *others = self.plan.requests("object")
        owner = owner or self._create(anchor)
        code = self.plan.requests("code")[0]
        pieces = self._pieces(code) if self._is_missing(code["pieces"]) else []
        claims = self.plan.requests("claim")
        others = [*others, *self._of_submission(), *pieces, *(() if self._is_kept() else claims)]
        owned = [manifests.owned(dict(one), owner) for one in others]
        with ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(self._create, [*owned, *(claims if self._is_kept() else ())]))
        return owner

    def _of_submission(self) -> list[Mapping[str, Any]]:
        """Objects that are created from a user's machine alone, beside the claim of data sets, which is of no run."""
        kinds = () if is_imported(self.plan) else ("data-claim", VOLUME_STEP, CLAIM_STEP)  # they were made there
        for made in (one for kind in kinds for one in self.plan.requests(kind)):
            self.client.create_if_absent(made)
        code = self.plan.requests("code")[0]
        if "source" in code and not is_imported(self.plan):  # the machine that submitted it has stored it
            code_store.send(code["source"], code["bytes"], lambda: self._packed(code).data)
        return [*self.plan.requests("policy"), *map(filled, self.plan.requests("transfer"))]

    # -- files --------------------------------------------------------------------------------------------------------

    def _data_staging(self) -> DataStaging:
        sources = {one["name"]: one["source"] for one in self.plan.requests("stage")}
        return DataStaging(self._transfer("stage-job"), sources)

    def _outputs_upload(self) -> OutputsUpload:
        to = next((one["destination"] for one in self.plan.requests("upload")), "")
        return OutputsUpload(self._transfer("upload-job"), to)

    def _checkpoint_uploads(self) -> CheckpointUploads:
        for one in self.plan.requests("upload"):
            if one.get("at") == "checkpoint":
                return CheckpointUploads(lambda step: self._transfer("upload-job", step), one["destination"])
        return CheckpointUploads(None, "")

    def _transfer(self, kind: str, step: int | None = None) -> JobTransfer | None:
        """By a Job of the plan; one that is made several times has the step of a checkpoint in its name."""
        for made in self.plan.requests(kind):
            if step is not None:
                meta = made["metadata"]
                made = {**made, "metadata": {**meta, "name": f"{meta['name']}-{step % MOST_STEPS}"}}
            return JobTransfer(
                self.client, made, lambda made: self._create(manifests.owned(made, self.create_shared())), refuse
            )
        return None

    def stage(self, record: Recorder, clock: Clock) -> bool:
        """See `Backend`."""
        return self._staging.turn(record, clock)

    def upload_at_checkpoint(self, record: Recorder, clock: Clock) -> None:
        """See `Backend`."""
        self._uploads.turn(record, clock)

    def upload(self, record: Recorder, clock: Clock) -> bool:
        """See `Backend`. Pods that wait for another attempt are ended first: others may want their resources."""
        if not self._is_released:
            self._is_released = True
            self._uploads.end()
            with contextlib.suppress(EngineError):  # `clean_up` does it again
                self._release_pods(record)
        return self._upload.turn(record, clock)

    def _fetch(self) -> Fetch:
        """What brings the outputs of a pod here."""
        return ExecFetch(self.client, self.plan.nodes.worker_python)

    def nodes_with_outputs(self, record: Recorder) -> tuple[int, ...]:
        """See `Backend`. As the nodes have reported at their end."""
        if not self._outputs_max:
            return ()
        number = len(record.status.attempts)
        ends = {node: self._end_of(number, node) for node in self._members(record)}
        nodes = tuple(node for node, end in ends.items() if isinstance(end, NodeEnded) and end.outputs)
        if nodes:  # else a lost node, too, may have had none
            lost = [node for node, end in ends.items() if isinstance(end, NodeStarted)]
            for message in lost_words(lost, "it has ended without reporting"):
                record.note(Warned(message))
        return nodes

    def _end_of(self, number: int, node: int) -> NodeStarted | NodeEnded | None:
        """The end of a node of an attempt, as it reported; else its start, and None where it has not started."""
        path = self._run_dir / f"attempt-{number}" / f"node-{node}.events"
        found = [event for event in node_events.read(path) if isinstance(event, NodeStarted | NodeEnded)]
        return found[-1] if found else None

    def collect(self, record: Recorder, nodes: Sequence[int], clock: Clock) -> bool:
        """See `Backend`."""
        number = len(record.status.attempts)
        ids = reuse.pods_of(self._run_dir / f"attempt-{number}", number, self._num_members(record))
        members = self._members(record)
        return self._collection.turn(
            record, {node: ids[members.index(node)] for node in nodes if node in members}, clock.wake
        )

    def remove(self) -> None:
        """See `Backend`: all objects of the run, except a claim that the job keeps."""
        shutdown.remove(self.client, self.plan.run_id)
        for claim in () if self._is_kept() else self.plan.requests("claim"):
            self.client.delete("v1", "PersistentVolumeClaim", claim["metadata"]["name"])

    @property
    def removal_hint(self) -> str:  # type: ignore[override]
        """See `Backend`."""
        kinds = ",".join(
            dict.fromkeys((WORKLOADS[self.via].plural, "jobs", "pods", "services", "configmaps", "leases"))
        )
        where = f"--context {self.client.context} -n {self.client.namespace}"
        return f"to remove all of it: kubectl {where} delete {kinds} -l {layout.selector(self.plan.run_id)}"

    def _is_kept(self) -> bool:
        return bool(self.plan.job.get("kubernetes", {}).get("results", {}).get("keep", False))

    def _is_missing(self, pieces: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the code, or a part of it, is not in the cluster yet."""
        found = self.client.find("v1", "ConfigMap", layout.selector(self.plan.run_id), limit="500")
        there = {one["metadata"]["name"] for one in found["items"]}
        return any(piece["metadata"]["name"] not in there for piece in pieces)

    def _pieces(self, code: Mapping[str, Any]) -> list[Manifest]:
        """The pieces of the code with their content. Raises as `_packed`."""
        data = self._packed(code).data
        return [
            {**piece, "binaryData": {"piece": base64.b64encode(data[at : at + PIECE_BYTES]).decode()}}
            for piece, at in zip(code["pieces"], range(0, len(data), PIECE_BYTES), strict=True)
        ]

    def _packed(self, code: Mapping[str, Any]) -> Packed:
        """The code as it was planned. Raises EngineError where the folder has changed since the plan."""
        if is_imported(self.plan):
            raise EngineError(f"the code of {self.plan.run_id} is no longer there",
                              "resume it on the machine that submitted it")  # fmt: skip
        return planned_code(code["digest"], Path(code["folder"]))

    # -- attempts -----------------------------------------------------------------------------------------------------

    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> PodAttempt:
        """See `Backend`. In the pods of the previous attempt that are kept alive, and in new ones for the others."""
        try:
            if not self.hold():
                why = "another supervisor may still hold the run: its Lease has not expired"
                raise TargetUnavailable("HolderUnknown", why)
            if not self._reuse_pods(record, folder, number, members):
                owner = self.create_shared()
                self._delete_others(record, number)
                specs = self._specs(record, number, members)
                self._create_pods(record, number, self._spares.beside(specs), owner)
        except (Refused, Unreachable) as error:
            refuse(error)
        with contextlib.suppress(OSError):  # on a full disk: what exists already is then requested again
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / STARTED).touch()
        return self.adopt(folder, number, members, clock)

    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> PodAttempt:
        """See `Backend`."""
        self.room.begin(members)
        self._wake = clock.wake
        specs = compose(self.plan.nodes, members)
        return PodAttempt(self.client, self.plan, number, specs, folder, clock.wake, self.control)

    def is_started(self, folder: Path) -> bool:
        """See `Backend`. Older versions left the files of its nodes alone.

        An attempt of which some pods may have got their order is not started: all are ordered again.
        """
        return (folder / STARTED).exists() or any(folder.glob("node-*"))

    def unreachable(self) -> set[int]:
        """See `Backend`. Of the nodes that are away, those for whose pods there is no capacity."""
        return self.room.missing()

    def _specs(
        self, record: Recorder, number: int, members: Sequence[int], ids: Sequence[PodId] | None = None
    ) -> list[NodeSpec]:  # fmt: skip
        """The specs of an attempt, in these pods, or in new ones."""
        asked = record.history.continuation(record.status)
        created_at = record.status.created_at
        ids = ids or reuse.own_pods(number, len(members))
        return compose(self.plan.nodes, members, attempt_facts(self.plan, number, ids, self.via, created_at, asked))

    def _reuse_pods(self, record: Recorder, folder: Path, number: int, members: Sequence[int]) -> bool:
        """Start the attempt in the pods of the previous one, and in new ones for those that were lost.

        False where it needs new pods for all nodes. What was decided by a supervisor that was killed meanwhile, or
        could not reach the cluster, holds: the pods that have got their order then begin with it.
        """
        decided = reuse.decided_pods(folder, len(members))
        is_decided = decided is not None
        ids = decided or self._choose_pods(record, folder, number, members)
        if not any(one.made_for < number for one in ids):
            return False
        there = reuse.running(self.client, self.plan.run_id, ids)
        pods = {place: pod for place, pod in there.items() if ids[place].made_for < number}
        specs = self._specs(record, number, members, ids)
        if not is_decided:
            self._decide_pods(record, folder, number, ids)
        is_whole = len(pods) == sum(one.made_for < number for one in ids)  # none was lost since it was decided
        is_taken = (
            bool(pods) and (is_whole or is_decided)
            and reuse.order(self.control, number, specs, ids, pods, self._spares.taken(record.status, ids))
        )  # fmt: skip
        if not is_taken and not is_decided:
            self._decide_pods(record, folder, number, reuse.own_pods(number, len(members)))
            return False
        self._replace_lost(record, number, specs, ids)
        return True

    def _choose_pods(
        self, record: Recorder, folder: Path, number: int, members: Sequence[int]
    ) -> tuple[PodId, ...]:  # fmt: skip
        """The pods of the attempt by place, new ones for those that were lost."""
        new = reuse.own_pods(number, len(members))
        if number == 1 or not self.plan.nodes.stay_seconds:
            return new
        before, now = record.status.attempts[-2:]
        if before.members != now.members or before.reason not in PODS_ARE_REUSABLE:
            return new
        ids = reuse.pods_of(folder.with_name(f"attempt-{number - 1}"), number - 1, len(members))
        pods = reuse.running(self.client, self.plan.run_id, ids)
        is_whole = len(pods) == len(ids)
        if not is_whole and not keeps_others(self.plan.requests("attempt")[0]):
            return new
        if is_whole and before.reason == "preemption":  # some of their nodes are about to go
            return new
        others = [] if is_whole else self._spares.ready(record.status)
        if not pods and not others:
            return new
        places = itertools.chain(others, new)
        return tuple(one if place in pods else next(places) for place, one in enumerate(ids))

    def _replace_lost(
        self, record: Recorder, number: int, specs: Sequence[NodeSpec], ids: Sequence[PodId]
    ) -> None:  # fmt: skip
        """End lost pods, and create those that no other pod replaces, and missing spares. Raises EngineError.

        The other pods of the attempt have their order already, so that this delays none of them.
        """
        left = self._spares.left(record.status)
        pods = self._spares.missing(record.status, dict(zip(ids, specs, strict=True)), left)
        if pods.specs or pods.taken:
            self._end_lost(number, {*ids, *left})
        if not pods.specs and not pods.num_spares:
            return
        try:
            self._create_pods(record, number, pods, self._create(self.plan.requests("object")[0]))
        except Refused as error:
            if pods.specs or error.status in PASSING:
                raise
            record.note(Warned(f"no spare could be created: {error.message}"))

    def _end_lost(self, number: int, kept: Collection[PodId]) -> None:
        """End what may be left of the pods that are replaced: none of them may keep training. Raises EngineError."""
        for pod in self.client.find("v1", "Pod", layout.of_attempts(self.plan.run_id))["items"]:
            is_older = layout.attempt_of(pod) < number and pod_id(pod) not in kept
            if is_older and not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]:
                self.client.delete("v1", "Pod", pod["metadata"]["name"], grace=0)

    def _decide_pods(self, record: Recorder, folder: Path, number: int, ids: Sequence[PodId]) -> None:
        """Keep in which pods an attempt is about to begin: a supervisor that adopts it must find them."""
        reuse.keep_decision(folder, reuse.decision(number, ids))

    def _create_pods(
        self, record: Recorder, number: int, pods: AttemptPods, owner: Mapping[str, Any]
    ) -> None:  # fmt: skip
        """Create the owner object of the pods that an attempt does not reuse, and what it refers to. Raises
        EngineError."""
        *parts, maker = numbered(self.plan, number, len(pods.specs) + pods.num_spares)
        if (limit := self.plan.policy["timeout_seconds"]) is not None:
            ahead = self.client.ahead if record.status.supervisor == CLUSTER else 0.0  # where the record has its times
            left = limit - record.status.limited_seconds(time.time() + ahead)
            manifests.bounded([*parts, maker], manifests.deadline_seconds(left, self.plan.policy["grace_seconds"]))
        config = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**maker["metadata"], "name": layout.attempt_name(self.plan.run_id, number)},
            **described(number, pods),
        }
        for one in (config, *parts):
            self._create(manifests.owned(one, owner))
        self._create_last(manifests.owned(maker, owner))

    def _delete_others(self, record: Recorder, number: int) -> None:
        """Delete the remaining objects of earlier attempts: none of their pods may keep training. Raises
        EngineError."""
        self.room.leave()
        kept = sorted({number, *self._kept_attempts(record, number)})
        self._delete_attempts(",".join(f"{layout.ATTEMPT_LABEL}!={one}" for one in kept))

    def _kept_attempts(self, record: Recorder, number: int) -> set[int]:
        """Attempts before this one whose ended pods have the only copy of what their ranks printed."""
        return set()

    def _delete_attempts(self, which: str = "") -> None:
        selector = ",".join(part for part in (layout.of_attempts(self.plan.run_id), which) if part)
        for made in reversed(attempt_objects(self.plan)):  # the owner of pods before what it refers to
            for one in self.client.find(made["apiVersion"], made["kind"], selector)["items"]:
                self.client.delete(made["apiVersion"], made["kind"], one["metadata"]["name"])

    # -- the end ------------------------------------------------------------------------------------------------------

    def prepare_end(self, record: Recorder) -> None:
        """See `Backend`. A run whose objects must still be cleaned up is marked by a file on this machine."""
        with contextlib.suppress(OSError):
            (self._run_dir / UNFINISHED).touch()

    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        """See `Backend`. What could not be done, the next command that looks tries again."""
        give_up, marker = time.monotonic() + (CLEAN_SECONDS if is_patient else 0.0), self._run_dir / UNFINISHED
        while True:
            try:
                self._clean_up_once(record)
            except EngineError as error:
                is_final = isinstance(error, Refused) and error.status not in PASSING
                if is_final or time.monotonic() > give_up:
                    self._note_unfinished(record, error)
                    with contextlib.suppress(OSError):
                        marker.unlink() if is_final else marker.touch()
                    return
                time.sleep(RETRY_SECONDS)
                continue
            with contextlib.suppress(OSError):
                marker.unlink(missing_ok=True)
            self.lease.release()
            return

    def _note_unfinished(self, record: Recorder, error: EngineError) -> None:
        message = f"could not clean up in the cluster after the end of the run: {error.message}; {self.removal_hint}"
        if message not in [warned.message for warned in entries(record.writer.events(), Warned)]:
            record.note(Warned(message))

    def _clean_up_once(self, record: Recorder) -> None:
        """Pods are kept until the run is removed, so that `kubectl logs` shows their output. Raises EngineError."""
        self.room.leave()
        status = record.status
        well = all(rank.exit_code == 0 for rank in status.ranks)
        tombstones.tell_end(self.client, self.plan.run_id, stopped=status.stop_requested, well=well)
        if WORKLOADS[self.via].remakes(self.plan.requests("attempt")[0]) and status.attempts:
            self._end_makers()
        number = len(status.attempts)
        folder = self._run_dir / f"attempt-{number}"
        if number and not self.is_started(folder) and reuse.is_ordered(folder, number):
            for name in shutdown.live_pods(self.client, self.plan.run_id):  # some may have got their order
                self.client.delete("v1", "Pod", name)
        elif not number or not self.is_started(folder):  # nothing that was created with the run may begin
            self._delete_attempts()
        else:
            self._release_pods(record)
        self._spares.end(status)
        self._staging.end()
        self._uploads.end()
        self._upload.end()
        self._collection.end()

    def _release_pods(self, record: Recorder) -> None:
        """End the pods of the last attempt that wait for another one."""
        status = record.status
        has_failed = any(rank.exit_code != 0 for rank in status.ranks)
        if (self.plan.nodes.stay_seconds and has_failed) or self._have_kept_outputs(record):
            number = len(status.attempts)
            ids = reuse.pods_of(self._run_dir / f"attempt-{number}", number, self._num_members(record))
            for made_for in {one.made_for for one in ids}:
                reuse.release(self.client, self.control, self.plan.run_id, made_for)

    @staticmethod
    def _have_kept_outputs(record: Recorder) -> bool:
        """Whether pods of the last attempt were kept until their outputs were collected."""
        newest = of_newest_attempt(record.writer.events())
        return any(ending.nodes for ending in entries(newest, RunEnding))

    def _num_members(self, record: Recorder) -> int:
        return len(self._members(record))

    def _members(self, record: Recorder) -> tuple[int, ...]:
        """The nodes of the last attempt, by place."""
        return record.status.attempts[-1].members or tuple(range(self.plan.num_nodes))

    def watch_node_deletion(self, store: Store) -> None:
        """See `Backend`."""
        deletion.watch_deletion(store, self.plan.run_id, self.client)

    def _end_makers(self) -> None:
        """Make sure that no more pods are created. Owner objects that have ended are kept, with their pods' logs."""
        way, give_up = WORKLOADS[self.via], time.monotonic() + END_SECONDS
        while True:
            found = self.client.find(way.api, way.kind, layout.of_attempts(self.plan.run_id))["items"]
            going = [one["metadata"]["name"] for one in found if not why_over(one)]
            if not going:
                return
            if time.monotonic() > give_up:
                for name in going:
                    self.client.delete(way.api, way.kind, name)
                return
            time.sleep(RETRY_SECONDS)

    # -- objects ------------------------------------------------------------------------------------------------------

    def _create_last(self, manifest: Mapping[str, Any]) -> None:
        """Create the object that refers to the others; an operator's webhook may not see these for a moment."""
        give_up = time.monotonic() + BEHIND_SECONDS
        while True:
            try:
                self._create(manifest)
                return
            except Refused as error:
                is_behind = f'"{manifest["metadata"]["name"]}" not found' in error.message
                if not is_behind or time.monotonic() > give_up:
                    raise
            time.sleep(BEHIND_RETRY_SECONDS)

    def _create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, or give the existing one if it is ours. Raises EngineError."""
        if (made := self.client.create_if_absent(manifest)) is not None:
            return made
        there = self.client.get(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])
        if there["metadata"].get("labels", {}).get(layout.RUN_LABEL) != self.plan.run_id:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            raise EngineError(f"{name} exists already, and is not of this run", "remove it, or run again")
        return there


def refuse(error: Refused | Unreachable) -> NoReturn:
    """Raise the error of a request that may be repeated as TargetUnavailable, any other as it is."""
    if isinstance(error, Refused) and error.status not in PASSING:
        raise error
    raise _unavailable(error) from error


def _unavailable(error: EngineError, more: str = "") -> TargetUnavailable:
    """The condition of a run whose cluster cannot be used now."""
    is_login = isinstance(error, NotLoggedIn) or (isinstance(error, Refused) and error.status == 401)
    kind = "LoginFailed" if is_login else "ClusterUnreachable"
    words = f"cannot log in to the cluster: {error.message}" if is_login else f"cannot use the cluster: {error.message}"
    return TargetUnavailable(kind, "; ".join(part for part in (words, more) if part), error.hint)
