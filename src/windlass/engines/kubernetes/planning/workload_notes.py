"""What a plan notes on its workload kind: what it cannot do, or the cluster does not serve. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.plan.plan import Note, blocker

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.spec.job import Job


def workload_notes(job: Job, cluster: Cluster | None, via: str) -> Iterator[Note]:
    """What keeps a job from running by the workload kind that was chosen for it, or requested."""
    if via not in WORKLOADS:
        yield blocker("via-unknown", f"via: {via} is not in this version", f"known are {', '.join(WORKLOADS)}")
        return
    way = WORKLOADS[via]
    if cluster is not None and via != "job" and way.api not in cluster.groups:
        yield blocker(
            f"{via}-missing", f"via: {via}, and the cluster serves no {way.api}", "via: job needs no operator"
        )
    if isinstance(job.kubernetes.ttl, float) and way.no_ttl:
        article = "an" if via == "mpijob" else "a"
        yield blocker(
            "ttl", f"kubernetes.ttl: {article} {way.kind} {way.no_ttl}", "leave it out; windlass rm removes the run"
        )
    if (job.launcher == "mpi") != (via == "mpijob"):
        yield blocker("mpi", f"launcher: {job.launcher}, and via: {via}", "launcher: mpi and via: mpijob go together")
    if job.queue is not None and via == "trainjob":
        message = (
            "from Trainer 2.2 on, Kueue (0.16 and before) cannot give a TrainJob the node labels and "
            "tolerations of its quota's flavor"
        )
        yield Note(
            "queue-flavor",
            f"queue: {job.queue}, and via: trainjob: {message}",
            "where the flavor has some: the same in kubernetes.node_labels, or another via:",
        )
    groups = cluster.groups if cluster is not None else frozenset()
    if via == "mpijob" and way.api not in groups and "kubeflow.org/v1" in groups:
        message = "an MPIJob of the cluster, if it has any, is of version v1, whose operator is no longer made"
        yield blocker("mpijob-old", message, "install mpi-operator 0.7 or newer")
