"""Turns what a way to have pods made cannot do, here or at all, into what is against a plan by it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.engines.kubernetes.ways import WAYS
from windlass.plan.plan import Note
from windlass.spec.job import Job

if TYPE_CHECKING:
    from windlass.engines.kubernetes.facts import Cluster


def way_notes(job: Job, cluster: Cluster | None, via: str) -> Iterator[Note]:
    """What keeps a job from running by the way that was chosen for it, or asked for."""
    if via not in WAYS:
        yield _blocker("via-unknown", f"via: {via} is not in this version", f"known are {', '.join(WAYS)}")
        return
    way = WAYS[via]
    if cluster is not None and via != "job" and way.api not in cluster.groups:
        yield _blocker(f"{via}-missing", f"via: {via}, and the cluster serves no {way.api}",
                       "via: job needs no operator")  # fmt: skip
    if job.kubernetes.ttl is not None and way.no_ttl:
        article = "an" if via == "mpijob" else "a"
        yield _blocker("ttl", f"kubernetes.ttl: {article} {way} {way.no_ttl}",
                       "leave it out; windlass rm removes the run")  # fmt: skip
    if (job.launcher == "mpi") != (via == "mpijob"):
        yield _blocker("mpi", f"launcher: {job.launcher}, and via: {via}", "launcher: mpi and via: mpijob go together")
    if job.queue is not None and via == "trainjob":
        message = ("from Trainer 2.2 on, Kueue (0.16 and before) does not know how to tell a TrainJob the node labels "
                   "and tolerations of its quota's flavor")  # fmt: skip
        yield Note("queue-flavor", f"queue: {job.queue}, and via: trainjob: {message}",
                   "where the flavor has some: the same in kubernetes.node_labels, or another via:")  # fmt: skip
    groups = cluster.groups if cluster is not None else frozenset()
    if via == "mpijob" and way.api not in groups and "kubeflow.org/v1" in groups:
        message = "an MPIJob of the cluster, if it has any, is of version v1, whose operator is no longer made"
        yield _blocker("mpijob-old", message, "install mpi-operator 0.7 or newer")


def _blocker(code: str, message: str, fix: str) -> Note:
    return Note(code, message, fix, blocks=True)
