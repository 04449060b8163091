"""Expiry of ended runs: the cluster deletes their objects, with the record there, and never their results.

The Job of a supervisor has a TTL. Once the run has ended, the Job owns the run's owner ConfigMap, so that the cluster
deletes all objects of the run with the Job, and no process is needed. A resume, which replaces the Job, first removes
it from the owners of the ConfigMap.

Runs that a user's machine supervises have no such Job: `sweep` removes them at each submission from that machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout, manifests
from windlass.engines.kubernetes.objects.namespace import namespace_of
from windlass.engines.kubernetes.objects.ttl import WEEK_SECONDS, seconds_of
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.running import shutdown
from windlass.runs.phase import Phase
from windlass.runs.record import CLUSTER, Status
from windlass.runs.store import Store

KEPT_ANNOTATION: Final = "windlass.dev/kept-from"
"""Annotation of an owner ConfigMap with the uid of a supervisor's Job that a resume has replaced. The replaced Job must
not own the ConfigMap again."""
SWEPT: Final = "expired"
"""Marker file in the folder of an expired run that `sweep` has processed."""
AT_ONCE: Final = 5
"""Maximum number of ended runs that one submission checks, since the user waits for the checks."""


def begin(client: Client, run_id: str) -> None:
    """Makes the run expire with the Job of its supervisor, which is about to end. Raises EngineError."""
    job = client.get(BATCH, "Job", layout.supervisor_name(run_id))
    if "ttlSecondsAfterFinished" not in job["spec"]:
        return
    owner_config_map = client.get("v1", "ConfigMap", run_id)
    if _notes(owner_config_map).get(KEPT_ANNOTATION) != job["metadata"]["uid"]:
        # The API server refuses the request if the owner ConfigMap has changed meanwhile, for example by a resume.
        client.call("PUT", client.path("v1", "ConfigMap", run_id), manifests.owned(owner_config_map, job))


def release(client: Client, run_id: str) -> None:
    """Makes the run outlive the Job of its supervisor, so that the Job can be deleted. Raises EngineError."""
    job = client.get_if_exists(BATCH, "Job", layout.supervisor_name(run_id))
    if job is None:
        return
    uid = job["metadata"]["uid"]

    def released(owner_config_map: Mapping[str, Any]) -> Mapping[str, Any]:
        meta = {key: value for key, value in owner_config_map["metadata"].items() if key != "ownerReferences"}
        return {
            **owner_config_map,
            "metadata": {**meta, "annotations": {**_notes(owner_config_map), KEPT_ANNOTATION: uid}},
        }

    # `update` retries, since the supervisor may change the owner ConfigMap at the same time
    client.update("v1", "ConfigMap", run_id, released)


def _notes(owner_config_map: Mapping[str, Any]) -> dict[str, str]:
    return dict(owner_config_map["metadata"].get("annotations") or {})


# -- runs supervised by a user's machine -------------------------------------------------------------------------------


def sweep(store: Store, client: Client, target: str, now: float) -> None:
    """Removes expired runs of this machine from the client's namespace; local records are kept.

    Raises EngineError, StoreError, OSError.
    """
    for status in itertools.islice(_ended(store, target, now), AT_ONCE):
        plan = store.plan(status.id)
        place, seconds = namespace_of(plan), seconds_of(plan)
        if seconds < float("inf") and (place.context, place.namespace) == (client.context, client.namespace):
            if now - (status.times.ended_at or now) < seconds:
                continue
            shutdown.remove(client, status.id)
        _mark(store, status).touch()


def _ended(store: Store, target: str, now: float) -> Iterator[Status]:
    """Yields runs that ended over a week ago and were not processed since. Lost runs are excluded, since their pods may
    still train.
    """
    for status in store.statuses():
        is_ours = (
            status.target == target and status.supervision.supervisor != CLUSTER and status.phase is not Phase.LOST
        )
        if is_ours and status.times.ended_at is not None and now - status.times.ended_at > WEEK_SECONDS:
            mark = _mark(store, status)
            if not mark.exists() or mark.stat().st_mtime < status.times.ended_at:
                yield status


def _mark(store: Store, status: Status) -> Path:
    return store.run_dir(status.id) / SWEPT
