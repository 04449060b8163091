"""Finds the pod of each node of a run by the run's objects, which may be newer than a record on this machine."""

from __future__ import annotations

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_assignment import beginning_pods
from windlass.engines.kubernetes.objects.pod_status import container_state
from windlass.engines.kubernetes.objects.pods import Pod, by_id
from windlass.errors import EngineError


def pods_of(client: Client, run_id: str) -> dict[int, Pod]:
    """Returns the newest pod of each node, by node number; a pod may run several attempts. Raises Refused,
    Unreachable.
    """
    which = layout.of_attempts(run_id)
    pods = by_id(client.find("v1", "Pod", which)["items"])
    configs = sorted(client.find("v1", "ConfigMap", which)["items"], key=layout.attempt_of)
    newest = {spec.node: one for config in configs for one, spec in beginning_pods(config).items()}
    return {node: pods[one] for node, one in newest.items() if one in pods}


def running_pod(client: Client, run_id: str, node: int) -> Pod:
    """Returns the pod of a node. Raises EngineError if it does not run."""
    pod = pods_of(client, run_id).get(node)
    if pod is None or container_state(pod)[0] != "running":
        how = "does not exist yet" if pod is None else f"is {container_state(pod)[0]}"
        raise EngineError(f"the pod of node {node} {how}", f"windlass status {run_id}")
    return pod
