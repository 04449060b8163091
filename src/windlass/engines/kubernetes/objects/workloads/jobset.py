"""A JobSet with one Job, which Kueue and gang schedulers admit as a unit."""

from __future__ import annotations

from typing import Final

from windlass.compat import override
from windlass.engines.kubernetes.objects.workloads.base import Manifest, Workload, WorkloadRequest
from windlass.engines.kubernetes.objects.workloads.job import indexed, ttl, unnamed

REPLICATED: Final = "n"
"""Name of the JobSet's only replicated job; short, since it is part of host names."""


class JobSet(Workload):
    """JobSet, which gives each pod its host name in the run's subdomain."""

    name, api, kind, plural = "jobset", "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"

    @override
    def made(self, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> list[Manifest]:
        subdomain = template["spec"]["subdomain"]
        # The Job gets the labels of the run, so that it is found like a Job without a JobSet.
        job = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": indexed(unnamed(template), asked)}
        spec = {
            "network": {"enableDNSHostnames": True, "subdomain": subdomain, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": REPLICATED, "replicas": 1, "template": job}],
        }
        return [{"apiVersion": self.api, "kind": self.kind, "metadata": meta, "spec": {**spec, **ttl(asked)}}]

    @override
    def host(self, name: str, subdomain: str, node: int) -> str:
        return f"{name}-{REPLICATED}-0-{node}.{subdomain}"

    @override
    def resize(self, made: Manifest, num_nodes: int) -> None:
        [replicated] = made["spec"]["replicatedJobs"]
        replicated["template"]["spec"] |= {"completions": num_nodes, "parallelism": num_nodes}
