"""How long the objects of a run are kept in the cluster after its end. Pure."""

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
"""How long a run is kept at least, so that commands can read how it ended."""


def run_seconds(job: Job) -> int | None:
    """How long after its end a run is kept in the cluster; None where it never expires.

    With a claim that would be deleted with the run, which may be the only copy of its results, it does not.
    """
    results, ttl = job.kubernetes.results, job.kubernetes.ttl
    if ttl == NEVER or (results is not None and results.claim is None and not results.keep):
        return None
    return WEEK_SECONDS if ttl is None else max(LEAST_SECONDS, round(float(ttl)))


def pods_seconds(job: Job, via: str, *, is_supervised_inside: bool) -> int | None:
    """How long after their end the pods of an attempt are kept; None where they are kept as long as the run."""
    ttl = job.kubernetes.ttl
    if isinstance(ttl, float):
        return round(ttl)
    is_kept = ttl == NEVER or is_supervised_inside or run_seconds(job) is None or bool(WORKLOADS[via].no_ttl)
    return None if is_kept else WEEK_SECONDS


def seconds_of(plan: Plan) -> float:
    """How long after its end the run of a plan is kept; infinite where it never expires."""
    seconds = plan.only(ClusterStep).expires_seconds
    return float("inf") if seconds is None else seconds
