"""An Indexed Job: part of every cluster, so that no operator is needed."""

from __future__ import annotations

from typing import Final

from windlass.engines.kubernetes.ways.base import Asked, Manifest, Way

BATCH: Final = "batch/v1"


class IndexedJob(Way):
    """Pods find each other by the headless Service of the run."""

    name, api, kind, plural = "job", BATCH, "Job", "jobs"

    def made(self, meta: Manifest, template: Manifest, asked: Asked) -> list[Manifest]:
        """See `Way`."""
        spec = {**indexed(template, asked), **ttl(asked)}
        return [{"apiVersion": BATCH, "kind": "Job", "metadata": meta, "spec": spec}]

    def host(self, name: str, subdomain: str, node: int) -> str:
        """See `Way`."""
        return f"{name}-{node}.{subdomain}"

    def resize(self, made: Manifest, num_nodes: int) -> None:
        """See `Way`."""
        made["spec"] |= {"completions": num_nodes, "parallelism": num_nodes}


def ttl(asked: Asked) -> Manifest:
    """As most kinds write it."""
    return {} if asked.ttl_seconds is None else {"ttlSecondsAfterFinished": asked.ttl_seconds}


def indexed(template: Manifest, asked: Asked) -> Manifest:
    """The spec of a Job whose pods have numbers. A pod that dies ends it: what follows, the run's policy says."""
    return {
        "completionMode": "Indexed",
        "completions": asked.num_nodes,
        "parallelism": asked.num_nodes,
        "backoffLimit": 0,
        "template": template,
    }


def unnamed(template: Manifest) -> Manifest:
    """The template for a maker that gives each pod its host name and subdomain by itself."""
    return {**template, "spec": {key: value for key, value in template["spec"].items() if key != "subdomain"}}
