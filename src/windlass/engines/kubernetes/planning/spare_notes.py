"""What a plan notes on the spares of a job: why it can have none, and what they need. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from windlass.plan.plan import Note, blocker

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.spec.job import Job

KEEPS_OTHERS_SINCE: Final = (1, 29)
"""The version of Kubernetes whose Jobs have `backoffLimitPerIndex` by default; older ones ignore it."""


def can_keep_others(job: Job, via: str, cluster: Cluster | None) -> bool:
    """Whether the owner object of the pods can keep the others when one is lost."""
    return via == "job" and job.queue is None and has_limit_per_index(cluster)


def has_limit_per_index(cluster: Cluster | None) -> bool:
    """Whether Jobs of the cluster have `backoffLimitPerIndex`."""
    found = re.match(r"v(\d+)\.(\d+)", cluster.version if cluster is not None else "")
    return found is not None and (int(found[1]), int(found[2])) >= KEEPS_OTHERS_SINCE


def spare_notes(job: Job, via: str, cluster: Cluster | None, *, is_inside: bool) -> Iterator[Note]:
    """Why a job cannot have the spares that it asks for, or what to know of them."""
    if not job.kubernetes.spares or cluster is None:
        return
    asked = f"kubernetes.spares: {job.kubernetes.spares}"
    if via != "job":
        yield blocker(
            "spares", f"{asked}, and via: {via}, which makes all pods anew when one is lost", "kubernetes: {via: job}"
        )
    elif job.queue is not None:
        yield blocker(
            "spares",
            f"{asked}, and queue: {job.queue}: a queue admits and evicts all pods of a Job at once",
            "leave out one of spares and queue",
        )
    elif not has_limit_per_index(cluster):
        yield blocker(
            "spares",
            f"{asked}, and Kubernetes {cluster.version}: before 1.29 a Job ends all its pods when one is lost",
            "leave spares out",
        )
    elif not job.restarts.max or "node-loss" not in job.restarts.on:
        yield blocker(
            "spares",
            f"{asked}, and restarts: does not restart after node-loss, so no spare is ever used",
            "restarts: 3",
        )
    elif job.nodes.min < job.nodes.max:
        yield blocker(
            "spares",
            f"{asked}, and nodes: {job.nodes.min}..{job.nodes.max}: a run that goes on with fewer "
            "nodes has no place for a spare",
            "nodes: with one number, or leave spares out",
        )
    elif not is_inside:
        yield Note(
            "spares-unwatched",
            f"{asked}, and the supervisor runs on this machine: while that is off, spares "
            "take no place, and are kept after the end of the run",
            "windlass target setup lets it run in the cluster; timeout: bounds what they cost",
        )
