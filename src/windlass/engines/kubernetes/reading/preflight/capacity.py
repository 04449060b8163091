"""Capacity probe: tests with idle pods whether the missing nodes of an elastic run could be scheduled.

Only the scheduler can decide whether a pod fits, given requests, quota, taints, priorities, and nodes that an
autoscaler could provision. A probe therefore creates idle pods with the same requests. A running probe pod reserves its
capacity until the run has saved a checkpoint and starts an attempt in which a node takes the pod's place.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import labels, layout, manifests
from windlass.engines.kubernetes.objects.find_pod_specs import pod_templates
from windlass.engines.kubernetes.objects.helper_manifests import bounded_job
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_status import container_state
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.plan.plan import Plan

LOOK_SECONDS: Final = 2.0
HOLD_SECONDS: Final = 3600
"""Maximum lifetime of probe pods in seconds, so that they do not occupy nodes after the supervisor has died."""
WAIT: Final = "import signal; signal.pause()"
OF_RANKS: Final = (
    "activeDeadlineSeconds",
    "hostname",
    "initContainers",
    "setHostnameAsFQDN",
    "subdomain",
    "topologySpreadConstraints",
    "volumes",
)
"""Fields of a pod spec that idle pods do not need. All others determine where a pod is scheduled, or its admission."""
OF_CONTAINER: Final = ("name", "image", "securityContext", "resources")
"""Fields of the ranks' container that idle pods have too."""


class CapacityProbe:
    """Probes the capacity for the missing nodes of one run."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._plan = plan
        self._name = layout.capacity_name(plan.run_id)
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
    owner = made[-1]["metadata"]
    like = next(template for one in made for template in pod_templates(one))
    [container] = like["spec"]["containers"]
    asks = {key: container[key] for key in OF_CONTAINER if key in container}
    pod = {
        **{key: value for key, value in like["spec"].items() if key not in OF_RANKS},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{**asks, "command": [container["command"][0], "-c", WAIT]}],
    }
    its = labels.of_helper(name, "capacity-probe", like["metadata"]["labels"])
    notes = {key: text for key, text in like["metadata"]["annotations"].items() if not key.startswith(layout.PREFIX)}
    queue = {key: text for key, text in owner["labels"].items() if key == layout.QUEUE_LABEL}
    meta = {"name": name, "namespace": owner["namespace"], "labels": {**its, **queue}, "annotations": notes}
    template = {"metadata": {"labels": its, "annotations": notes}, "spec": _apart(pod, name)}
    job = {"apiVersion": BATCH, "kind": "Job", "metadata": meta, "spec": {"template": template}}
    return bounded_job(job, HOLD_SECONDS, num_pods)


def _apart(pod: Manifest, name: str) -> Manifest:
    """Returns the spec of a probe pod which, where ranks must be apart, is also apart from the other probe pods."""
    affinity = pod.get("affinity", {})
    rules = affinity.get("podAntiAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", ())
    if not rules:
        return pod
    probes = {"matchLabels": {labels.HELPER: name}}
    rules = [*rules, *({**rule, "labelSelector": probes} for rule in rules)]
    apart = {**affinity["podAntiAffinity"], "requiredDuringSchedulingIgnoredDuringExecution": rules}
    return {**pod, "affinity": {**affinity, "podAntiAffinity": apart}}
