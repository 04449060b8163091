"""Decides where the supervisor of a run runs: in the cluster, or on the machine that starts the run. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.preflight.rbac import EXEC, supervisor_needs
from windlass.engines.kubernetes.reading.preflight.rights import decide, how_to, lacking_on
from windlass.plan.plan import Note, blocker

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget


def supervised_in_cluster(job: Job, target: KubernetesTarget, cluster: Cluster | None, via: str) -> tuple[bool, str]:
    """Whether the supervisor of the run of a job, of this workload kind, runs in the cluster, and why."""
    if cluster is None:
        return False, "the cluster does not answer"
    namespace = job.kubernetes.namespace or target.namespace
    return decide(
        target,
        namespace,
        has_account=cluster.has_supervisor_account,
        missing=cluster.supervisor_missing,
        lacking=_lacking(job, cluster, via),
    )


def _lacking(job: Job, cluster: Cluster, via: str) -> tuple[str, ...]:
    way = WORKLOADS.get(via, WORKLOADS["job"])
    return lacking_on(supervisor_needs(way, is_queued=job.queue is not None), cluster.supervisor_granted)


def missing_rights(job: Job, target: KubernetesTarget, cluster: Cluster, via: str) -> tuple[str, ...]:
    """The rights without which the run of a job cannot be submitted, of those that the login lacks."""
    is_there, _ = supervised_in_cluster(job, target, cluster, via)
    unneeded = {str(right) for right in EXEC} if is_there else set()
    return tuple(right for right in cluster.missing if right not in unneeded)


def supervision_notes(job: Job, target: KubernetesTarget, cluster: Cluster | None, via: str) -> Iterator[Note]:
    """What keeps the supervisor out of a cluster in which the target wants it, or which was set up for it."""
    if target.supervisor == "machine" or cluster is None:
        return
    is_there, why = supervised_in_cluster(job, target, cluster, via)
    if is_there:
        return
    is_usable = cluster.has_supervisor_account and not cluster.supervisor_missing
    lacking = _lacking(job, cluster, via) if is_usable else ()
    fix = how_to(target.name, has_account=cluster.has_supervisor_account, lacking=lacking)
    if target.supervisor == "cluster":
        yield blocker("supervisor-missing", f"supervisor: cluster, and {why}", fix)
    elif lacking:
        yield Note("supervisor-rights", f"{why}: this machine supervises the run", fix)
