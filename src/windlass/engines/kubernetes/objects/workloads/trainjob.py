"""A TrainJob of Kubeflow Trainer v2, with a separate TrainingRuntime, or with a runtime of the cluster (`runtimes.py`).

The separate TrainingRuntime is created for each attempt, since its pods need the labels and volumes of the attempt. It
has no `torch` policy: the worker sets up the rendezvous, so that the variables of that policy would not be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.compat import override
from windlass.engines.kubernetes.objects.workloads.base import Manifest, Workload, WorkloadRequest
from windlass.engines.kubernetes.objects.workloads.job import indexed, unnamed
from windlass.engines.kubernetes.objects.workloads.runtimes import API, NODE, STEP, TRAINER, train_job


class TrainJob(Workload):
    """TrainJob, whose controller creates a JobSet, which creates a Job. The JobSet sets host names in a subdomain with
    the TrainJob's name.
    """

    name, api, kind, plural = "trainjob", API, "TrainJob", "trainjobs"
    revives = True
    no_ttl = "would recreate the pods that the cluster removes, and train again"
    parts = (("TrainingRuntime", "trainingruntimes"),)

    @override
    def made(self, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> list[Manifest]:
        if asked.runtime is not None:
            return [train_job(asked.runtime, meta, template, asked)]
        labels = template["metadata"]["labels"]
        job = {"metadata": {"labels": {**labels, STEP: "trainer"}}, "spec": indexed(unnamed(template), asked)}
        runtime = {
            "mlPolicy": {"numNodes": asked.num_nodes},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": [{"name": NODE, "replicas": 1, "template": job}],
                },
            },
        }
        spec = {
            "runtimeRef": {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": meta["name"]},
            "trainer": {"numNodes": asked.num_nodes},
        }
        return [
            {"apiVersion": API, "kind": "TrainingRuntime", "metadata": {**meta, "labels": labels}, "spec": runtime},
            {"apiVersion": API, "kind": self.kind, "metadata": meta, "spec": spec},
        ]

    @override
    def host(self, name: str, subdomain: str, node: int) -> str:
        return f"{name}-{NODE}-0-{node}.{name}"

    def remakes(self, made: Mapping[str, Any]) -> bool:
        """Whether the TrainJob uses a runtime of the cluster, whose own retries a TrainJob cannot turn off."""
        return bool(made["spec"]["runtimeRef"]["name"] != made["metadata"]["name"])

    def resize(self, made: Manifest, num_nodes: int) -> None:
        """Sets the number of nodes in the TrainJob, whose fields take precedence over the runtime's."""
        if made["kind"] == self.kind:
            made["spec"]["trainer"]["numNodes"] = num_nodes
