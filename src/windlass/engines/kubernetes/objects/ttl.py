"""How long the objects of a run are kept in the cluster after its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects.workloads import WORKLOADS

if TYPE_CHECKING:
    from windlass.spec.job import Job

NEVER: Final = "never"
WEEK_SECONDS: Final = 7 * 24 * 3600
LEAST_SECONDS: Final = 3600
"""How long a run is kept at least, so that commands can read how it ended."""
AFTER: Final = "expires_seconds"
"""Field of the step `cluster` of a plan: how long after its end the run is kept; absent where it never expires."""


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


def seconds_of(plan: Mapping[str, Any]) -> float:
    """How long after its end the run of a plan, as JSON, is kept; infinite where it never expires."""
    [cluster] = [step["request"] for step in plan["steps"] if step["kind"] == "cluster"]
    return float(cluster.get(AFTER, float("inf")))
