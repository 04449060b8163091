"""Finds problems worth a warning in events of the API server, and the ends of owner objects. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.observations import ObjectReport
from windlass.engines.kubernetes.objects.pod_status import MAX_WORDS, STARTING_REASONS, PodStatus
from windlass.engines.kubernetes.objects.quantity import Json, condition, event_time, is_true
from windlass.runs.events import Event, Warned, entries, of_newest_attempt

ENDED: Final = ("Failed", "Complete", "Completed", "Succeeded")
"""Types of conditions that mark an owner object of any workload kind as ended."""
OUR_POLICY: Final = frozenset(
    {
        "BackoffLimitExceeded",
        "FailedIndexes",
        "FailedJobs",
        "ReachedMaxRestarts",
        "PyTorchJobFailed",
        "MPIJobFailed",
        "JobSetFailed",
    }
)
"""Reasons in the conditions of an owner object that has ended because a pod failed, as its manifest specifies."""
OF_QUEUES: Final = frozenset({
    "Suspended", "SuspendedJobs", "ResumeJobs", "Stopped", "PyTorchJobSuspended", "PyTorchJobResumed",
    "MPIJobSuspended", "MPIJobResumed", "CreatedWorkload", "UpdatedWorkload", "DeletedWorkload", "FinishedWorkload",
    "UpdatedAdmissionCheck",
})  # fmt: skip
"""Reasons of ignored events about suspended objects: Kueue's own status explains the suspension."""
OF_OPERATORS: Final = frozenset(
    {
        "SuccessfulCreatePod",
        "SuccessfulCreateService",
        "SuccessfulDeletePod",
        "SuccessfulDeleteService",
        "ExitedWithCode",
        *(f"{kind}Job{what}" for kind in ("PyTorch", "MPI") for what in ("Created", "Running", "Succeeded", "Failed")),
    }
)
"""Reasons of events with which Kubeflow's operators report normal progress."""
ORDINARY: Final = frozenset({
    "Scheduled", "Pulling", "Pulled", "Created", "Started", "SuccessfulCreate", "SuccessfulDelete", "Completed",
    "SuccessfulAttachVolume", "BackOff", "Failed", "FailedScheduling", "Killing", "ProvisioningSucceeded",
    "Provisioning", "ExternalProvisioning", "Resumed", *OUR_POLICY, *OF_QUEUES, *OF_OPERATORS,
})  # fmt: skip
"""Reasons of events that report no problem, or a problem that the pod's status reports as well."""
OF_PROVISIONING: Final = frozenset({"Nominated", "TriggeredScaleUp", "NotTriggerScaleUp"})
"""Reasons of events about node provisioning, which `reading/claims.py` handles."""
NOT_ORDINARY: Final = ",".join(f"reason!={reason}" for reason in sorted(ORDINARY))
"""Field selector that excludes events with an ORDINARY reason."""
_COUNTS: Final = re.compile(r"\d+(?:[.]\d+)?(?:m|k|[KMGT]i?)?")
_NOT_CREATED: Final = re.compile(r'\b(pods?) "[^"]*"')
"""Matches the name of a refused pod in a message of its owner object; each retry uses another name."""


def object_reports(
    events: Iterable[Json], run_id: str, number: int, *, claims: Iterable[str] = (), spares: Iterable[str] = ()
) -> Iterator[ObjectReport]:
    """Yields the problems that events of a namespace report about an attempt and about its claims: each once, newest
    first.

    Events about pods whose names start with a prefix in `spares` are skipped: an attempt does not wait for spares.
    """
    ignored = tuple(spares)
    name, seen, wanted = layout.attempt_name(run_id, number), set[tuple[str, str]](), {run_id, *claims}
    for event in sorted(events, key=event_time, reverse=True):
        about = event.get("involvedObject", {})
        called = str(about.get("name", ""))
        is_its = called == name or (called.startswith(f"{name}-") and not called.startswith(ignored))
        is_claim = about.get("kind") == "PersistentVolumeClaim" and called in wanted
        if not (is_its or is_claim) or event.get("reason") in (*ORDINARY, *OF_PROVISIONING):
            continue
        message = str(event.get("message") or "").strip()
        # Events of the owner object about spares that it cannot create are skipped as well.
        if any(f'"{prefix}' in message for prefix in ignored):
            continue
        report = ObjectReport(about.get("kind", ""), called, event.get("reason", ""), message[:MAX_WORDS])
        if (once := (report.kind, key(report))) not in seen:
            seen.add(once)
            yield report


def is_problem(pod: PodStatus) -> bool:
    """Whether the status of a pod is worth a warning."""
    return bool(pod.reason) and pod.reason not in STARTING_REASONS and pod.reason not in ("Error", "Completed")


def key(seen: PodStatus | ObjectReport) -> str:
    """Returns a key that identifies a problem, without the names and numbers that differ between pods or change over
    time.
    """
    message = _NOT_CREATED.sub(r"\1 it", seen.message)
    return f"{seen.reason} {_COUNTS.sub('#', message.replace(seen.name, 'it') if seen.name else message)}"


# -- owner objects ----------------------------------------------------------------------------------------------------


def end_of(owner: Json) -> str:
    """Returns the type of the condition with which an owner object of any kind has ended; empty while it is active."""
    return next((kind for kind in ENDED if is_true(owner, kind)), "")


def ends_of(owner: Json | None, kind: str, name: str) -> Iterator[ObjectReport]:
    """Yields reports on why an owner object creates no more pods; `owner` is None if the object was deleted."""
    if owner is None:
        yield ObjectReport(kind, name, "Deleted", f"{kind} {name} was deleted")
        return
    for one in owner.get("status", {}).get("conditions", ()):
        is_end = one["type"] in ("Failed", "FailureTarget") and one["status"] == "True"
        if is_end and one.get("reason") not in OUR_POLICY:
            yield ObjectReport(kind, name, one.get("reason", "Failed"), one.get("message", ""))


def why_over(owner: Mapping[str, Any]) -> str:
    """Returns how an owner object has ended, from its condition; empty while it is active."""
    end = end_of(owner)
    message = condition(owner, end).get("message")
    return end.lower() + (f": {message}" if message else "")


def finished_indexes(job: Mapping[str, Any]) -> frozenset[int]:
    """Returns the indexes of an Indexed Job whose pods have ended or are lost; empty for other owner objects."""
    status, found = job.get("status", {}), set[int]()
    for name in ("completedIndexes", "failedIndexes"):
        for part in filter(None, str(status.get(name) or "").split(",")):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


# -- the record -------------------------------------------------------------------------------------------------------


def warning(seen: PodStatus | ObjectReport) -> dict[str, Any]:
    """Returns the data of a `warning` event of the record about this problem."""
    words = ": ".join(part for part in (seen.reason, seen.message) if part)
    if isinstance(seen, ObjectReport):
        return {"message": f"{seen.kind} {seen.name}: {words}", "object": asdict(seen), "waits": True}
    return {"message": f"pod {seen.name}: {words}", "pod": asdict(seen), "waits": seen.state in ("queued", "pulling")}


def recorded(events: Iterable[Event]) -> tuple[dict[int, PodStatus], list[ObjectReport]]:
    """Returns the problems recorded in warnings of the newest attempt: each pod's last problem, and all problems of
    other objects.
    """
    pods: dict[int, PodStatus] = {}
    said: list[ObjectReport] = []
    for warned in entries(of_newest_attempt(events), Warned):
        if warned.pod is not None:
            pods[warned.pod["node"]] = PodStatus(**warned.pod)
        elif warned.object is not None:
            said.append(ObjectReport(**warned.object))
    return pods, said
