"""Computes how long the objects of a run are kept in the cluster after its end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.plan.steps import ClusterStep

if TYPE_CHECKING:
    from windlass.plan.plan import Plan
    from windlass.spec.job import Job

NEVER: Final = "never"
WEEK_SECONDS: Final = 7 * 24 * 3600
LEAST_SECONDS: Final = 3600
"""Least seconds for which a run is kept after its end, so that commands can read its result."""


def run_seconds(job: Job) -> int | None:
    """Returns for how many seconds a run is kept in the cluster after its end; None if it never expires.

    A run whose results claim would be deleted with the run never expires: the claim may have the only copy of the
    results.
    """
    results, ttl = job.kubernetes.results, job.kubernetes.ttl
    if ttl == NEVER or (results is not None and results.claim is None and not results.keep):
        return None
    return WEEK_SECONDS if ttl is None else max(LEAST_SECONDS, round(float(ttl)))


def pods_seconds(job: Job, via: str, *, is_supervised_inside: bool) -> int | None:
    """Returns for how many seconds the pods of an attempt are kept after their end; None if they are kept as long as
    the run.
    """
    ttl = job.kubernetes.ttl
    if isinstance(ttl, float):
        return round(ttl)
    is_kept = ttl == NEVER or is_supervised_inside or run_seconds(job) is None or bool(WORKLOADS[via].no_ttl)
    return None if is_kept else WEEK_SECONDS


def seconds_of(plan: Plan) -> float:
    """Returns for how many seconds the run of a plan is kept after its end; infinity if it never expires."""
    seconds = plan.only(ClusterStep).expires_seconds
    return float("inf") if seconds is None else seconds
