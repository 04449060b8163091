"""Starts one attempt: in live pods of the previous attempt, with new pods in place of lost ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.unavailable import is_passing
from windlass.engines.kubernetes.objects import layout, manifests, pod_template
from windlass.engines.kubernetes.objects.planned import numbered
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment, attempt_facts, config_data
from windlass.engines.kubernetes.objects.pod_status import has_ended
from windlass.engines.kubernetes.objects.pods import Pod, PodId, pod_id
from windlass.engines.kubernetes.objects.workloads.job import keeps_others
from windlass.engines.kubernetes.running import reuse
from windlass.plan.compose import compose
from windlass.plan.steps import AttemptStep
from windlass.runs.events import Warned
from windlass.runs.record import CLUSTER
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import NodeSpec

if TYPE_CHECKING:
    from windlass.engines.kubernetes.running.backend import KubernetesBackend

BEHIND_SECONDS: Final = 20.0
"""Seconds for which an operator's webhook may not find an object that another object refers to."""
BEHIND_RETRY_SECONDS: Final = 0.1
STARTING_TRAINER: Final = "unsupported runtime: "
"""Error of a Trainer that has just started, and whose webhook has not registered the kinds of runtimes yet."""
PODS_ARE_REUSABLE: Final = ("failure", "hang", "node-loss", "preemption")
"""End reasons of attempts whose pods the next attempt can reuse."""


class AttemptStart:
    """Starts the newest attempt of a run. All methods raise EngineError."""

    def __init__(
        self, backend: KubernetesBackend, record: Recorder, folder: Path, number: int, members: Sequence[int]
    ) -> None:
        self._backend = backend
        self._client, self._plan, self._spares = backend.client, backend.plan, backend.spares
        self._record = record
        self._folder = folder
        self._number = number
        self._members = members
        self._new_pods = PodAssignment.new(number, len(members))

    def in_new_pods(self, owner: Mapping[str, Any]) -> None:
        """Starts the attempt in new pods for all nodes; `owner` is the run's owner ConfigMap."""
        self._create_pods(self._new_pods, self._specs(self._new_pods), owner, self._spares.num)

    def in_running_pods(self) -> bool:
        """Starts the attempt in the pods of the previous attempt, with new pods for lost ones; returns False if all
        nodes need new pods.

        A decision that an earlier supervisor has stored is followed, since some pods may already have received orders.
        """
        decided = PodAssignment.decided(self._folder, self._number, len(self._members))
        assignment = decided or self._chosen_pods()
        reused = assignment.reused
        if not reused:
            return False
        running = reuse.running(self._client, self._plan.run_id, assignment)
        pods = {place: running[place] for place in reused if place in running}
        specs = self._specs(assignment)
        if decided is None:
            self._decide(assignment)
            # if a chosen pod was lost or refuses its order, all nodes get new pods
            if len(pods) < len(reused) or not self._order(assignment, specs, pods):
                self._decide(self._new_pods)
                return False
        elif pods:
            self._order(assignment, specs, pods)
        self._replace_lost(assignment, specs)
        return True

    # -- the pods of the previous attempt -----------------------------------------------------------------------------

    def _chosen_pods(self) -> PodAssignment:
        """Returns the attempt's pods: those of the previous attempt, with spares or new pods for lost ones, or only new
        pods.
        """
        if self._number == 1 or not self._plan.nodes.reuse_wait_seconds:
            return self._new_pods
        before, now = self._record.status.attempts[-2:]
        # A resume may have new code, which live pods lack.
        if now.is_resume or before.members != now.members or before.reason not in PODS_ARE_REUSABLE:
            return self._new_pods
        folder = self._folder.with_name(f"attempt-{self._number - 1}")
        earlier = PodAssignment.of(folder, self._number - 1, len(self._members))
        pods = reuse.running(self._client, self._plan.run_id, earlier)
        if len(pods) == len(earlier.pods):
            same = PodAssignment(self._number, earlier.pods)
            # after a preemption, some of the cluster's nodes are about to be removed
            return self._new_pods if before.reason == "preemption" else same
        if not keeps_others(self._plan.only(AttemptStep).manifest):
            return self._new_pods
        others = itertools.chain(self._spares.ready(self._record.status), self._new_pods.pods)
        chosen = (one if place in pods else next(others) for place, one in enumerate(earlier.pods))
        return PodAssignment(self._number, tuple(chosen))

    def _decide(self, assignment: PodAssignment) -> None:
        """Stores which pods the attempt will use, for a supervisor that takes over."""
        self._backend.keep_decision(self._record, self._folder, assignment.event())

    def _order(self, assignment: PodAssignment, specs: Sequence[NodeSpec], pods: Mapping[int, Pod]) -> bool:
        """Orders these pods to start the attempt; returns whether all pods accepted."""
        taken = self._spares.taken(self._record.status, assignment)
        return reuse.order(self._backend.control, assignment, specs, pods, taken)

    def _replace_lost(self, assignment: PodAssignment, specs: Sequence[NodeSpec]) -> None:
        """Ends lost pods, and creates their replacements and missing spares.

        The other pods have already received their orders, and are not delayed.
        """
        status = self._record.status
        left = self._spares.live(status)
        created, taken = assignment.created, self._spares.taken(status, assignment)
        num_spares = max(0, self._spares.num - len(left))
        if created or taken:
            self._end_lost({*assignment.pods, *left})
        if not created and not num_spares:
            return
        try:
            self._create_pods(assignment, specs, self._backend.owner_config_map(), num_spares, taken)
        except Refused as error:
            if created or is_passing(error):
                raise
            self._record.note(Warned(f"no spare could be created: {error.message}"))

    def _end_lost(self, kept: Collection[PodId]) -> None:
        """Ends replaced pods that may still run, so that none of them continues to train."""
        for pod in self._client.find("v1", "Pod", layout.of_attempts(self._plan.run_id))["items"]:
            is_older = layout.attempt_of(pod) < self._number and pod_id(pod) not in kept
            if is_older and not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]:
                self._client.delete("v1", "Pod", pod["metadata"]["name"], grace=0)

    # -- new pods -----------------------------------------------------------------------------------------------------

    def _specs(self, assignment: PodAssignment) -> list[NodeSpec]:
        status = self._record.status
        asked = self._record.history.continuation(status)
        facts = attempt_facts(self._plan, assignment, self._backend.via, status.times.created_at, asked)
        return compose(self._plan.nodes, self._members, facts)

    def _create_pods(
        self,
        assignment: PodAssignment,
        specs: Sequence[NodeSpec],
        owner: Mapping[str, Any],
        num_spares: int,
        taken: Collection[int] = (),
    ) -> None:
        """Creates the owner object of the attempt's new pods, and the objects that it refers to.

        The owner object also creates spares. `taken` are the places (node indexes in the attempt) whose pods were
        spares before.
        """
        status = self._record.status
        *parts, maker = numbered(self._plan, self._number, len(assignment.created) + num_spares)
        if (limit := self._plan.policy.timeout_seconds) is not None:
            ahead = (
                self._client.ahead if status.supervision.supervisor == CLUSTER else 0.0
            )  # the record uses the cluster's time
            left = limit - status.times.limited_seconds(time.time() + ahead)
            seconds = pod_template.deadline_seconds(left, self._plan.policy.grace_seconds)
            pod_template.bounded([*parts, maker], seconds)
        config = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**maker["metadata"], "name": layout.attempt_name(self._plan.run_id, self._number)},
            **config_data(assignment, specs, num_spares, taken),
        }
        made = [self._backend.create(manifests.owned(one, owner)) for one in (config, *parts)]
        # The runtime owns the TrainJob, so that a foreground deletion removes the TrainJob first: Trainer refuses every
        # change of a TrainJob without a runtime, even while the TrainJob is being deleted.
        self._create_last(manifests.owned(maker, made[-1], is_first=True) if parts else manifests.owned(maker, owner))

    def _create_last(self, manifest: Mapping[str, Any]) -> None:
        """Creates the object that refers to the others; retries while an operator's webhook cannot find the others."""
        give_up = time.monotonic() + BEHIND_SECONDS
        while True:
            try:
                self._backend.create(manifest)
                return
            except Refused as error:
                name = manifest["metadata"]["name"]  # Trainer and Kueue quote this name differently in their errors
                words = (f'"{name}" not found', f"'{name}' not found", STARTING_TRAINER)
                is_behind = any(one in error.message for one in words)
                if not is_behind or time.monotonic() > give_up:
                    raise
            time.sleep(BEHIND_RETRY_SECONDS)
