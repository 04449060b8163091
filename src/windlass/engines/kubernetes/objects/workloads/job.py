"""An Indexed Job, which every cluster supports without an operator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from windlass.compat import override
from windlass.engines.kubernetes.objects.workloads.base import Manifest, Workload, WorkloadRequest

BATCH: Final = "batch/v1"
KEEPS_OTHERS_SINCE: Final = (1, 29)
"""First Kubernetes version whose Jobs have `backoffLimitPerIndex` by default; older versions ignore the field."""


class IndexedJob(Workload):
    """Indexed Job, whose pods connect to each other through the headless Service of the run."""

    name, api, kind, plural = "job", BATCH, "Job", "jobs"

    @override
    def made(self, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> list[Manifest]:
        spec = {**indexed(template, asked), **ttl(asked)}
        return [{"apiVersion": BATCH, "kind": "Job", "metadata": meta, "spec": spec}]

    @override
    def host(self, name: str, subdomain: str, node: int) -> str:
        return f"{name}-{node}.{subdomain}"

    @override
    def resize(self, made: Manifest, num_nodes: int) -> None:
        made["spec"] |= {"completions": num_nodes, "parallelism": num_nodes}


def has_limit_per_index(version: str) -> bool:
    """Whether Jobs of a cluster version such as `v1.34.4` have `backoffLimitPerIndex`; False if the version is
    unknown.
    """
    found = re.match(r"v(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= KEEPS_OTHERS_SINCE


def keeps_others(made: Mapping[str, Any]) -> bool:
    """Whether the remaining pods of a Job that `made` returned keep running if one is lost."""
    return "backoffLimitPerIndex" in made["spec"]


def ttl(asked: WorkloadRequest) -> Manifest:
    """Returns the field `ttlSecondsAfterFinished`, or no field if the request has no time to live."""
    return {} if asked.ttl_seconds is None else {"ttlSecondsAfterFinished": asked.ttl_seconds}


def indexed(template: Manifest, asked: WorkloadRequest) -> Manifest:
    """Returns the spec of an Indexed Job, which replaces no pods: the run's restart policy decides what follows a
    failure.

    A failed pod ends the Job, unless the next attempt reuses the remaining pods.
    """
    return {
        "completionMode": "Indexed",
        "completions": asked.num_nodes,
        "parallelism": asked.num_nodes,
        "backoffLimitPerIndex" if asked.keeps_others else "backoffLimit": 0,
        "template": template,
    }


def unnamed(template: Manifest) -> Manifest:
    """Returns the pod template without its subdomain, for controllers that set host names and subdomains themselves."""
    return {**template, "spec": {key: value for key, value in template["spec"].items() if key != "subdomain"}}
