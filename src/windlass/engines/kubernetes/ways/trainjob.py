"""A TrainJob of Kubeflow Trainer v2, with a TrainingRuntime of its own: nothing is assumed of the cluster's runtimes.

The runtime is made anew for each attempt, since the labels and volumes of its pods are those of the attempt. It has no
`torch` policy: the rendezvous is the worker's own affair, and the variables that policy sets would be read by nobody.
"""

from __future__ import annotations

from typing import Final

from windlass.engines.kubernetes.ways.base import Asked, Manifest, Way
from windlass.engines.kubernetes.ways.job import indexed, unnamed

TRAINER: Final = "trainer.kubeflow.org"
STEP: Final = f"{TRAINER}/trainjob-ancestor-step"
REPLICATED: Final = "node"
"""What the job of the training is called in every runtime."""


class TrainJob(Way):
    """It makes a JobSet, and that a Job; host names are JobSet's, below the TrainJob's name."""

    name, api, kind, plural = "trainjob", f"{TRAINER}/v1alpha1", "TrainJob", "trainjobs"
    has_ttl = False
    """A JobSet of it that the cluster has removed, it would make anew, and train again."""
    parts = (("TrainingRuntime", "trainingruntimes"),)

    def made(self, meta: Manifest, template: Manifest, asked: Asked) -> list[Manifest]:
        """See `Way`."""
        labels = template["metadata"]["labels"]
        job = {"metadata": {"labels": {**labels, STEP: "trainer"}}, "spec": indexed(unnamed(template), asked)}
        runtime = {
            "mlPolicy": {"numNodes": asked.num_nodes},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": [{"name": REPLICATED, "replicas": 1, "template": job}],
                },
            },
        }
        return [
            {
                "apiVersion": self.api,
                "kind": "TrainingRuntime",
                "metadata": {**meta, "labels": labels},
                "spec": runtime,
            },
            {
                "apiVersion": self.api,
                "kind": self.kind,
                "metadata": meta,
                "spec": {
                    "runtimeRef": {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": meta["name"]},
                    "trainer": {"numNodes": asked.num_nodes},
                },
            },
        ]

    def host(self, name: str, subdomain: str, node: int) -> str:
        """See `Way`."""
        return f"{name}-{REPLICATED}-0-{node}.{name}"

    def resize(self, made: Manifest, num_nodes: int) -> None:
        """See `Way`. What the TrainJob says goes over what the runtime does."""
        if made["kind"] == self.kind:
            made["spec"]["trainer"]["numNodes"] = num_nodes
