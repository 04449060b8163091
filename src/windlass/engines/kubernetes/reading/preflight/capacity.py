"""Capacity probe: tests with idle pods whether the missing nodes of an elastic run could be scheduled.

Only the scheduler can decide whether a pod fits, given requests, quota, taints, priorities, and nodes that an
autoscaler could provision. A probe therefore creates idle pods with the same requests. A running probe pod reserves its
capacity until the run has saved a checkpoint and starts an attempt in which a node takes the pod's place.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windlass.engines.kubernetes.access import background, probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import labels, layout, manifests
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_spec import pod_spec
from windlass.engines.kubernetes.objects.pod_status import container_state
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.plan.plan import Plan

LOOK_SECONDS: Final = 2.0
HOLD_SECONDS: Final = 3600
"""Maximum lifetime of probe pods in seconds, so that they do not occupy nodes after the supervisor has died."""
WAIT: Final = "import signal; signal.pause()"
LIKE_A_NODE: Final = (
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "serviceAccountName",
    "securityContext",
    "affinity",
    "runtimeClassName",
    "schedulerName",
    "automountServiceAccountToken",
    "enableServiceLinks",
)
"""Fields of a pod spec that determine where a pod is scheduled and whether it is admitted."""


class CapacityProbe:
    """Probes the capacity for the missing nodes of one run."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._plan = plan
        self._name = f"{plan.run_id}-capacity"
        self.is_elastic = plan.policy.min_nodes < plan.num_nodes
        self._away: tuple[int, ...] = ()
        self._found = 0
        """Number of missing nodes for which capacity was found."""
        self._done = threading.Event()
        self._is_asking = False

    def begin(self, members: Sequence[int]) -> None:
        """Begins an attempt with the nodes `members`; all other nodes of the run are missing."""
        self._away = tuple(node for node in range(self._plan.num_nodes) if node not in members)

    def missing(self) -> set[int]:
        """Returns the missing nodes for which no capacity was found; keeps probing for their capacity from now on."""
        if not (self.is_elastic and self._away):
            return set()
        if not self._is_asking:
            self._is_asking, self._done = True, threading.Event()
            away, done = self._away, self._done
            background.start(
                f"capacity for {self._plan.run_id}", lambda: self._ask(away, done), done, self._client.health
            )
        return set(self._away[self._found :])

    def leave(self) -> None:
        """Deletes the probe pods, whose capacity the run now uses or no longer needs. Raises EngineError."""
        self._done.set()
        if self.is_elastic:
            self._client.delete(BATCH, "Job", self._name)
        self._is_asking, self._found = False, 0

    def _ask(self, away: tuple[int, ...], done: threading.Event) -> bool:
        """Counts the running probe pods once; returns whether to stop. While the cluster is unreachable, the count is
        unchanged.
        """
        self._make(len(away))
        # If `leave` deleted the Job before this thread created it, this thread must delete it.
        if done.is_set():
            self._client.delete(BATCH, "Job", self._name)
            return True
        pods = self._client.find("v1", "Pod", f"{labels.HELPER}={self._name}")["items"]
        running = sum(container_state(pod)[0] == "running" for pod in pods)
        if not done.is_set():
            self._found = running
        return done.wait(LOOK_SECONDS)

    def _make(self, num_pods: int) -> None:
        made = attempt_objects(self._plan)
        owner = self._client.get("v1", "ConfigMap", self._plan.run_id)
        self._client.create_if_absent(manifests.owned(waiting(made, self._name, num_pods), owner))


def waiting(made: Sequence[Mapping[str, Any]], name: str, num_pods: int) -> Manifest:
    """Returns a Job with `num_pods` idle pods that have the same requests as an attempt's pods. Pure."""
    like, meta = pod_spec(made), made[-1]["metadata"]
    [container] = like["containers"]
    asks = {key: container[key] for key in ("name", "image", "securityContext", "resources") if key in container}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        **{key: like[key] for key in LIKE_A_NODE if key in like},
        "containers": [{**asks, "command": [container["command"][0], "-c", WAIT]}],
    }
    return probe_pods.job(
        name,
        HOLD_SECONDS,
        num_pods,
        pod,
        namespace=meta["namespace"],
        labels=labels.of_helper(name, "capacity-probe", meta["labels"]),
        annotations=meta.get("annotations", {}),
        pull_secrets=probe_pods.secrets_of(like),
        queue=meta["labels"].get(layout.QUEUE_LABEL),
    )
