"""A PyTorchJob of Kubeflow's training-operator (v1), of Workers alone.

With a Master every Worker would get an init container that waits for the Master's name, of an image that many clusters
cannot pull; and the job would count as done when the Master is, its Workers ended in the middle of their last words.
"""

from __future__ import annotations

from typing import Final

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.ways.base import Asked, Manifest, Way
from windlass.engines.kubernetes.ways.job import ttl

NUMBERED: Final = "-worker-"
"""What stands in the names of pods before their number. The label for it counts otherwise in some versions."""


class PyTorchJob(Way):
    """The operator makes a headless Service for each pod, with the pod's own name."""

    name, api, kind, plural = "pytorchjob", "kubeflow.org/v1", "PyTorchJob", "pytorchjobs"
    container = "pytorch"
    replaces_pods = True

    def made(self, meta: Manifest, template: Manifest, asked: Asked) -> list[Manifest]:
        """See `Way`."""
        spec: Manifest = {
            # What runs on when another has failed is ended, and what has ended stays for its log.
            "runPolicy": {"cleanPodPolicy": "Running", **ttl(asked)},
            "pytorchReplicaSpecs": {
                "Worker": {"replicas": asked.num_nodes, "restartPolicy": "Never", "template": numbered(template)}
            },
        }
        if asked.min_nodes < asked.num_nodes:
            # It counts as done with its first Worker that is; the others are to come to their end all the same.
            spec["runPolicy"]["cleanPodPolicy"] = "None"
            spec["elasticPolicy"] = {
                "minReplicas": asked.min_nodes, "maxReplicas": asked.num_nodes, "rdzvBackend": "c10d",
            }  # fmt: skip
        return [{"apiVersion": self.api, "kind": self.kind, "metadata": meta, "spec": spec}]

    def host(self, name: str, subdomain: str, node: int) -> str:
        """See `Way`."""
        return f"{name}-worker-{node}"

    def resize(self, made: Manifest, num_nodes: int) -> None:
        """See `Way`."""
        made["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = num_nodes


def numbered(template: Manifest, first: int = 0) -> Manifest:
    """The pods' template, but for what Kubeflow's operators want to say themselves; pods are told their names.

    The one that the operator counts as 0 plays the node `first`.
    """
    spec = {key: value for key, value in template["spec"].items() if key not in ("subdomain", "restartPolicy")}
    [container] = spec["containers"]
    env = [
        *container["env"],
        {"name": "WINDLASS_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "WINDLASS_FIRST_PLACE", "value": str(first)},
    ]
    meta = template["metadata"]
    meta = {**meta, "annotations": {**meta["annotations"], layout.FIRST_PLACE_ANNOTATION: str(first)}}
    return {"metadata": meta, "spec": {**spec, "containers": [{**container, "env": env}]}}
