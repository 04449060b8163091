"""Expiry of runs that have ended: the cluster deletes their objects and their record together, and never results.

The Job of a supervisor has a TTL, and owns the run's anchor once the run has ended: the cluster deletes the Job, and
with it all of the run. Nothing needs to run for that. A resume first releases the anchor, since it replaces the Job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout, manifests
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.job import BATCH

if TYPE_CHECKING:
    from windlass.spec.job import Job

NEVER: Final = "never"
WEEK_SECONDS: Final = 7 * 24 * 3600
LEAST_SECONDS: Final = 3600
"""How long a run is kept at least, so that commands can read how it ended."""
AFTER: Final = "expires_seconds"
"""Field of the step `cluster` of a plan: how long after its end the run is kept; absent where it never expires."""
KEPT_ANNOTATION: Final = "windlass.dev/kept-from"
"""Of an anchor: the uid of the supervisor's Job that a resume has replaced. It must not own the anchor any more."""


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


def begin(client: Client, run_id: str) -> None:
    """Have the run expire with the Job of its supervisor, which ends now. Raises EngineError."""
    job = client.get(BATCH, "Job", layout.supervisor_name(run_id))
    if "ttlSecondsAfterFinished" not in job["spec"]:
        return
    anchor = client.get("v1", "ConfigMap", run_id)
    if _notes(anchor).get(KEPT_ANNOTATION) != job["metadata"]["uid"]:
        # Refused where the anchor was changed meanwhile, as by a resume.
        client.call("PUT", client.path("v1", "ConfigMap", run_id), manifests.owned(anchor, job))


def release(client: Client, run_id: str) -> None:
    """Have the run outlive the Job of its supervisor, which can then be deleted. Raises EngineError."""
    job = client.get_if_exists(BATCH, "Job", layout.supervisor_name(run_id))
    if job is None:
        return
    uid = job["metadata"]["uid"]

    def released(anchor: Mapping[str, Any]) -> Mapping[str, Any]:
        meta = {key: value for key, value in anchor["metadata"].items() if key != "ownerReferences"}
        return {**anchor, "metadata": {**meta, "annotations": {**_notes(anchor), KEPT_ANNOTATION: uid}}}

    client.update("v1", "ConfigMap", run_id, released)  # its supervisor may bind the anchor meanwhile, once


def _notes(anchor: Mapping[str, Any]) -> dict[str, str]:
    return dict(anchor["metadata"].get("annotations") or {})
