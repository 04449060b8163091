"""Stops and removes a run through its objects, wherever its supervisor runs.

A marker is created first, so that the supervisor attributes the deletion of pods to a requested stop.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.objects.object_reports import why_over
from windlass.engines.kubernetes.objects.pod_status import has_ended, sidecars
from windlass.engines.kubernetes.objects.pod_template import END_SECONDS
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.objects.workloads import OWNER_KINDS, OWNING_PARTS
from windlass.engines.kubernetes.objects.workloads.base import Workload
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.running import markers
from windlass.engines.kubernetes.running.exposed import conceal
from windlass.errors import EngineError, NoSuchRun

OWNER_END_SECONDS: Final = 5.0
"""Seconds to wait, after the end of the pods, for their owner objects to report their end."""
OWNER_PAUSE_SECONDS: Final = 1.0


def grace_seconds(client: Client, run_id: str) -> float:
    """Returns the grace period of a run's ranks in seconds, read from its pods; 0 without pods. Raises Refused,
    Unreachable.
    """
    pods = client.find("v1", "Pod", layout.of_attempts(run_id))["items"]
    given = [pod["spec"].get("terminationGracePeriodSeconds", 0) for pod in pods]
    return float(max(0, max(given, default=0) - END_SECONDS))


def request(client: Client, run_id: str, *, now: bool) -> None:
    """Requests the end of a run; `now` skips the grace period. Raises NoSuchRun, Refused, Unreachable."""
    owner_config_map = client.get_if_exists("v1", "ConfigMap", run_id)
    if owner_config_map is None:
        raise NoSuchRun(f"{run_id} no longer exists", "its objects were deleted")
    markers.put(client, owner_config_map, layout.STOP_MARKER, now=now)


def stop(client: Client, run_id: str, *, now: bool) -> None:
    """Requests the end of a run and deletes its pods, independently of the supervisor. Raises NoSuchRun, Refused,
    Unreachable.
    """
    request(client, run_id, now=now)
    delete_owner_objects(client, run_id)
    if now:
        for pod in client.find("v1", "Pod", layout.of_attempts(run_id))["items"]:
            client.delete("v1", "Pod", pod["metadata"]["name"], grace=0)


def remove(client: Client, run_id: str) -> None:
    """Deletes all objects of a run, except a claim that the run does not own. Raises Refused, Unreachable."""
    # Pods are deleted before Jobs: after a restart of the API server, Kubernetes may not remove the finalizers of ended
    # pods whose Job is missing. The owner ConfigMap is deleted last, since with it the cluster deletes the other
    # objects in any order.
    delete_owner_objects(client, run_id, are_pods_first=True)
    conceal(client, run_id)
    client.delete("v1", "ConfigMap", run_id)
    for name in live_pods(client, run_id):  # an owner object may have been deleted earlier without its pods
        client.delete("v1", "Pod", name)


def live_pods(client: Client, run_id: str) -> list[str]:
    """Returns the names of the run's pods that have not ended. Raises Refused, Unreachable."""
    pods = client.find("v1", "Pod", layout.of_attempts(run_id))["items"]
    return [str(pod["metadata"]["name"]) for pod in pods if not has_ended(pod)]


def end_leftovers(client: Client, run_id: str, *, now: bool) -> None:
    """Ends pods that still run although their run has ended. Raises Refused, Unreachable."""
    found = live_pods(client, run_id)
    if not found:
        return
    with contextlib.suppress(NoSuchRun):  # without an owner ConfigMap, only the pods remain
        stop(client, run_id, now=now)
    for name in found:
        client.delete("v1", "Pod", name, grace=0 if now else None)


def delete_owner_objects(client: Client, run_id: str, *, are_pods_first: bool = False) -> None:
    """Deletes the owner objects of a run's pods, and with them the pods. Raises Refused, Unreachable."""
    for api, kind in (*OWNING_PARTS, *OWNER_KINDS) if are_pods_first else OWNER_KINDS:
        for one in _found(client, api, kind, run_id):
            client.delete(api, kind, one["metadata"]["name"], is_owned_first=are_pods_first)


def end_owner_objects(client: Client, run_id: str, workload: Workload) -> None:
    """Deletes owner objects that may still create pods. Ended ones are kept, with their pods' logs.

    Raises Refused, Unreachable.
    """
    give_up = time.monotonic() + OWNER_END_SECONDS
    while True:
        found = client.find(workload.api, workload.kind, layout.of_attempts(run_id))["items"]
        going = [one["metadata"]["name"] for one in found if not why_over(one)]
        if not going or time.monotonic() > give_up:
            break
        time.sleep(OWNER_PAUSE_SECONDS)
    for name in going:
        client.delete(workload.api, workload.kind, name)


def delete_pods_with_sidecars(client: Client, run_id: str, note: Callable[[list[str]], None]) -> None:
    """Deletes the owner objects of pods that only sidecar containers keep running, and with them the pods.

    Calls `note` with the names of the sidecars before it deletes anything: after a lost answer, the next try may find
    no pod any more. Raises EngineError while the ranks' container still runs, and Refused, Unreachable.
    """
    pods = client.find("v1", "Pod", layout.of_attempts(run_id))["items"]
    held = [pod for pod in pods if sidecars(pod) and "deletionTimestamp" not in pod["metadata"]]
    if going := [pod["metadata"]["name"] for pod in held if not has_ended(pod)]:
        raise EngineError(f"the ranks of pod {going[0]} have not ended yet", "the next command tries again")
    if held:
        note(sorted({name for pod in held for name in sidecars(pod)}))
        delete_owner_objects(client, run_id)
        for pod in held:  # an owner object may have been deleted earlier without its pods
            client.delete("v1", "Pod", pod["metadata"]["name"])


def end_supervisor_job(client: Client, run_id: str) -> None:
    """Ends the Job of a finished supervisor whose pod sidecar containers keep running.

    The Job's TTL then starts, as after a regular end of the pod.
    """
    with contextlib.suppress(EngineError):
        pods = client.find("v1", "Pod", supervisor_status.selector(run_id))["items"]
        if any(sidecars(_with_supervisor_container(pod)) for pod in pods):
            name = layout.supervisor_name(run_id)
            client.update(BATCH, "Job", name, lambda job: {**job, "spec": {**job["spec"], "activeDeadlineSeconds": 1}})


def _with_supervisor_container(pod: Json) -> Json:
    notes = {**(pod["metadata"].get("annotations") or {}), layout.CONTAINER_ANNOTATION: labels.SUPERVISOR}
    return {**pod, "metadata": {**pod["metadata"], "annotations": notes}}


def only_copy(client: Client, run_id: str) -> str:
    """Describes the claim that would be deleted with the run that owns it; empty if the run owns none. Raises
    Unreachable.
    """
    with contextlib.suppress(Refused):
        claim = client.get("v1", "PersistentVolumeClaim", run_id)
        if any(owner["name"] == run_id for owner in claim["metadata"].get("ownerReferences", ())):
            return f"claim {run_id}, and the files in it"
    return ""


def _found(client: Client, api: str, kind: str, run_id: str) -> list[dict[str, Any]]:
    try:
        return list(client.find(api, kind, layout.of_attempts(run_id))["items"])
    except Refused as error:
        if api != BATCH and error.status in (403, 404):  # the kind is not installed, or listing it is not permitted
            return []
        raise
