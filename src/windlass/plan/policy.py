"""The limits of a job that its supervisor applies: time, grace period, hang, restarts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.spec.job import Job


def policy(job: Job) -> dict[str, Any]:
    """The policy of a plan, without what depends on the target; times are in seconds."""
    return {
        "timeout_seconds": job.timeout,
        "grace_seconds": job.grace,
        "hang_seconds": job.hang,
        "max_restarts": job.restarts.max,
        "restart_on": list(job.restarts.on),
        "min_nodes": job.nodes.max if job.launcher == "mpi" else job.nodes.min,
        "node_back_seconds": job.local.back_after,
    }
