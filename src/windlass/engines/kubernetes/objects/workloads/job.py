"""An Indexed Job: part of every cluster, so that no operator is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from windlass.compat import override
from windlass.engines.kubernetes.objects.workloads.base import Manifest, Workload, WorkloadRequest

BATCH: Final = "batch/v1"
KEEPS_OTHERS_SINCE: Final = (1, 29)
"""The version of Kubernetes whose Jobs have `backoffLimitPerIndex` by default; older ones ignore it."""


class IndexedJob(Workload):
    """Pods find each other by the headless Service of the run."""

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
    """Whether Jobs of a cluster of this version, as `v1.34.4`, have `backoffLimitPerIndex`; not where it is unknown."""
    found = re.match(r"v(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= KEEPS_OTHERS_SINCE


def keeps_others(made: Mapping[str, Any]) -> bool:
    """Whether the loss of a pod of a Job that `made` gave leaves its other pods as they are."""
    return "backoffLimitPerIndex" in made["spec"]


def ttl(asked: WorkloadRequest) -> Manifest:
    """As most kinds write it."""
    return {} if asked.ttl_seconds is None else {"ttlSecondsAfterFinished": asked.ttl_seconds}


def indexed(template: Manifest, asked: WorkloadRequest) -> Manifest:
    """The spec of an Indexed Job, which replaces no pod: the run's policy decides what follows.

    A failed pod ends it, unless the next attempt is to run in the other pods.
    """
    return {
        "completionMode": "Indexed",
        "completions": asked.num_nodes,
        "parallelism": asked.num_nodes,
        "backoffLimitPerIndex" if asked.keeps_others else "backoffLimit": 0,
        "template": template,
    }


def unnamed(template: Manifest) -> Manifest:
    """The template for an owner object that itself sets host name and subdomain of each pod."""
    return {**template, "spec": {key: value for key, value in template["spec"].items() if key != "subdomain"}}
