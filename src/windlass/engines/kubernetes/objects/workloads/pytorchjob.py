"""A PyTorchJob of Kubeflow's training-operator (v1), with Workers only.

With a Master, every Worker would get an init container that waits for the Master's name, with an image that many
clusters cannot pull. The job would also count as complete when the Master ends, and the operator would then end the
Workers before their last log lines.
"""

from __future__ import annotations

from typing import Final

from windlass.compat import override
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.workloads.base import Manifest, Workload, WorkloadRequest
from windlass.engines.kubernetes.objects.workloads.job import ttl

NUMBERED: Final = "-worker-"
"""Text before the index in pod names. The operator's index label starts at another number in some versions."""


class PyTorchJob(Workload):
    """PyTorchJob, whose operator creates a headless Service for each pod, named like the pod."""

    name, api, kind, plural = "pytorchjob", "kubeflow.org/v1", "PyTorchJob", "pytorchjobs"
    container = "pytorch"
    replaces_pods = True

    @override
    def made(self, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> list[Manifest]:
        spec: Manifest = {
            # After a failure, the operator ends pods that still run, and keeps ended pods for their logs.
            "runPolicy": {"cleanPodPolicy": "Running", **ttl(asked)},
            "pytorchReplicaSpecs": {
                "Worker": {"replicas": asked.num_nodes, "restartPolicy": "Never", "template": numbered(template)}
            },
        }
        if asked.min_nodes < asked.num_nodes:
            # An elastic job counts as complete when its first Worker ends; the others must still be able to finish.
            spec["runPolicy"]["cleanPodPolicy"] = "None"
            spec["elasticPolicy"] = {
                "minReplicas": asked.min_nodes,
                "maxReplicas": asked.num_nodes,
                "rdzvBackend": "c10d",
            }
        return [{"apiVersion": self.api, "kind": self.kind, "metadata": meta, "spec": spec}]

    @override
    def host(self, name: str, subdomain: str, node: int) -> str:
        return f"{name}-worker-{node}"

    @override
    def resize(self, made: Manifest, num_nodes: int) -> None:
        made["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = num_nodes


def numbered(template: Manifest, first: int = 0) -> Manifest:
    """Returns the pod template without the fields that Kubeflow's operators set, and with variables for the pod's name
    and for `first`, the node that the operator's pod 0 runs.
    """
    spec = {key: value for key, value in template["spec"].items() if key not in ("subdomain", "restartPolicy")}
    [container] = spec["containers"]
    env = [
        *(one for one in container["env"] if one["name"] != layout.POD_NAME_VARIABLE),
        {"name": layout.POD_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "WINDLASS_FIRST_PLACE", "value": str(first)},
    ]
    meta = template["metadata"]
    meta = {**meta, "annotations": {**meta["annotations"], layout.FIRST_PLACE_ANNOTATION: str(first)}}
    return {"metadata": meta, "spec": {**spec, "containers": [{**container, "env": env}]}}
