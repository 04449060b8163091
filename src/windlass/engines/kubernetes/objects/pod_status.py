"""Reads pods, events and owner objects of the API server into what diagnosis and record need of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.observations import ClusterNode, ObjectReport, PodStatus
from windlass.engines.kubernetes.objects.pod_spec import pod_spec
from windlass.engines.kubernetes.objects.quantity import (
    Json,
    condition,
    event_time,
    is_on_silent_node,
    is_true,
    seconds_of,
)
from windlass.engines.kubernetes.objects.waiting import ON_THE_WAY, reason_of
from windlass.runs.events import Event, Warned, entries, of_newest_attempt

ENDED: Final = ("Failed", "Complete", "Completed", "Succeeded")
"""Conditions of an owner object, of one kind or another, that has ended."""
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
"""Reasons of an owner object that ends because a pod has failed, as the manifest requests."""
OF_QUEUES: Final = frozenset({
    "Suspended", "SuspendedJobs", "ResumeJobs", "Stopped", "PyTorchJobSuspended", "PyTorchJobResumed",
    "MPIJobSuspended", "MPIJobResumed", "CreatedWorkload", "UpdatedWorkload", "DeletedWorkload", "FinishedWorkload",
    "UpdatedAdmissionCheck",
})  # fmt: skip
"""Reasons of events of objects that a queue suspends, for which the queue itself reports why."""
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
"""Reasons of events in which Kubeflow's operators report that they have done their work."""
ORDINARY: Final = frozenset({
    "Scheduled", "Pulling", "Pulled", "Created", "Started", "SuccessfulCreate", "SuccessfulDelete", "Completed",
    "SuccessfulAttachVolume", "BackOff", "Failed", "FailedScheduling", "Killing", "ProvisioningSucceeded",
    "Provisioning", "ExternalProvisioning", "Resumed", *OUR_POLICY, *OF_QUEUES, *OF_OPERATORS,
})  # fmt: skip
"""Reasons of events that report no problem, or one that the pod reports itself."""
OF_PROVISIONING: Final = frozenset({"Nominated", "TriggeredScaleUp", "NotTriggerScaleUp"})
"""Reasons of events on node provisioning, which `provisioning/claims.py` reads."""
NOT_ORDINARY: Final = ",".join(f"reason!={reason}" for reason in sorted(ORDINARY))
"""The same as a field selector."""
MAX_WORDS: Final = 1500
"""Characters of a message of the cluster that are kept: the scheduler names each kind of node that does not fit."""
_COUNTS: Final = re.compile(r"\d+(?:[.]\d+)?(?:m|k|[KMGT]i?)?")
_NOT_CREATED: Final = re.compile(r'\b(pods?) "[^"]*"')
"""A pod that was refused, in the message of its owner object: each try has another name."""
_TAGGED: Final = re.compile(r"^\[(\d+|n|w|a)\]\+?r? ", re.MULTILINE)
"""A line of the log of one of our pods (`worker/pod.py`)."""


def pod_status(node: int, pod: Json | None) -> PodStatus:
    """The status of the pod of a node; None is a pod that was not created."""
    if pod is None:
        return PodStatus(node)
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    node_name = pod.get("spec", {}).get("nodeName", "")
    where, data = container_state(pod)

    def found(state: str, reason: str = "", message: str = "") -> PodStatus:
        return PodStatus(node, name, state, reason, message.strip()[:MAX_WORDS], node_name, data.get("exitCode"))

    has_ended = where == "terminated" or status.get("phase") in ("Succeeded", "Failed")
    state = "ended" if has_ended else "running" if where == "running" else "pulling" if node_name else "queued"
    # The container has the best reason, but "Error" means no more than that its exit code was not 0.
    if where == "terminated" and data.get("reason") not in ("Error", "Completed", "ContainerStatusUnknown", None):
        return found("ended", data["reason"], last_words(data))
    disruption = condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True" and (reason := disruption.get("reason")):
        # Of a kubelet that ends a pod, the pod has the reason.
        told = status if reason == "TerminationByKubelet" and status.get("reason") else disruption
        return found(state, told["reason"], told.get("message", ""))
    if status.get("reason"):
        return found(state, status["reason"], status.get("message", ""))
    is_deleted = "deletionTimestamp" in pod["metadata"]
    if state == "ended":
        return found("ended", "Deleted" if is_deleted else data.get("reason", ""), last_words(data))
    if state == "running":
        return found("running", "Deleted" if is_deleted else "NodeNotReady" if is_on_silent_node(pod) else "")
    placed = condition(pod, "PodScheduled")
    why = placed if placed.get("status") == "False" else data
    if is_deleted and why.get("reason") in (None, *ON_THE_WAY):
        return found(state, "Deleted")
    return found(state, *reason_of(why))


def container_state(pod: Json) -> tuple[str, Json]:
    """Whether its container is `waiting`, `running` or `terminated`, and the details."""
    one = _container_status(pod)
    # One that was restarted, by a runtime's own policy, has ended for us: nothing trains in it.
    for state, data in (one["lastState"] if is_restarted(pod) else one.get("state", {})).items():
        return state, data or {}
    return "waiting", {}


def exit_code(pod: Json) -> int | None:
    """How its container has ended; None where it has not, or that is not known."""
    state, data = container_state(pod)
    code = data.get("exitCode") if state == "terminated" else None
    return code if isinstance(code, int) else None


def ended_at(pod: Json | None) -> float | None:
    """When its container has ended, in Unix seconds; None where it has not, or that is not known."""
    state, data = ("", {}) if pod is None else container_state(pod)
    return seconds_of(data.get("finishedAt"), 0.0) or None if state == "terminated" else None


def is_restarted(pod: Json) -> bool:
    """Whether its container was restarted after it had ended."""
    one = _container_status(pod)
    return one.get("restartCount", 0) > 0 and bool(one.get("lastState"))


def _container_status(pod: Json) -> Json:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    name = layout.container_of(pod) if statuses else ""
    return next((one for one in statuses if one["name"] == name), {})


def sidecars(pod: Json) -> list[str]:
    """The containers that run beside ours, such as one that a webhook has injected. They keep the pod from ending."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    name = layout.container_of(pod) if statuses else ""
    return [str(one["name"]) for one in statuses if one["name"] != name and "running" in one.get("state", {})]


def last_words(ended: Json) -> str:
    """The message of a container that has ended: what broke it, or the end of its log, which the record has."""
    words = str(ended.get("message") or "")
    if not _TAGGED.search(words):
        return words
    kept = [line.removeprefix("[w] ") for line in words.splitlines() if line.startswith("[w] ")]
    return "\n".join(kept)


def is_problem(pod: PodStatus) -> bool:
    """Whether the status of a pod is worth a warning."""
    return bool(pod.reason) and pod.reason not in ON_THE_WAY and pod.reason not in ("Error", "Completed")


def key(seen: PodStatus | ObjectReport) -> str:
    """Identifies a problem: pods of one attempt, and one hour and the next, differ in names and numbers alone."""
    message = _NOT_CREATED.sub(r"\1 it", seen.message)
    return f"{seen.reason} {_COUNTS.sub('#', message.replace(seen.name, 'it') if seen.name else message)}"


def object_reports(
    events: Iterable[Json], run_id: str, number: int, *, claims: Iterable[str] = (), spares: Iterable[str] = ()
) -> Iterator[ObjectReport]:
    """What events of a namespace report of an attempt and of claims that it needs, each once, the newest first.

    An attempt waits for no spare: nothing is reported of pods with these prefixes.
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
        if any(f'"{prefix}' in message for prefix in ignored):  # their owner object reports why it cannot create them
            continue
        report = ObjectReport(about.get("kind", ""), called, event.get("reason", ""), message[:MAX_WORDS])
        if (once := (report.kind, key(report))) not in seen:
            seen.add(once)
            yield report


def claims_of(made: Iterable[Json]) -> list[str]:
    """The claims that the pods of these objects mount."""
    volumes = pod_spec(made).get("volumes", ())
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def cluster_node(node: Json) -> ClusterNode:
    """A node, as far as scheduling goes."""
    meta, allocatable = node["metadata"], node.get("status", {}).get("allocatable", {})
    return ClusterNode(meta["name"], is_true(node, "Ready"), allocatable, meta.get("labels", {}))


def end_of(owner: Json) -> str:
    """The condition by which an owner object of any kind has ended; empty while it is active."""
    return next((kind for kind in ENDED if is_true(owner, kind)), "")


def ends_of(owner: Json | None, kind: str, name: str) -> Iterator[ObjectReport]:
    """Why an owner object creates no more pods; None is one that was deleted."""
    if owner is None:
        yield ObjectReport(kind, name, "Deleted", f"{kind} {name} was deleted")
        return
    for one in owner.get("status", {}).get("conditions", ()):
        is_end = one["type"] in ("Failed", "FailureTarget") and one["status"] == "True"
        if is_end and one.get("reason") not in OUR_POLICY:
            yield ObjectReport(kind, name, one.get("reason", "Failed"), one.get("message", ""))


# -- the record -------------------------------------------------------------------------------------------------------


def warning(seen: PodStatus | ObjectReport) -> dict[str, Any]:
    """The data of the record's event `warning` on a problem."""
    words = ": ".join(part for part in (seen.reason, seen.message) if part)
    if isinstance(seen, ObjectReport):
        return {"message": f"{seen.kind} {seen.name}: {words}", "object": asdict(seen), "waits": True}
    return {"message": f"pod {seen.name}: {words}", "pod": asdict(seen), "waits": seen.state in ("queued", "pulling")}


def recorded(events: Iterable[Event]) -> tuple[dict[int, PodStatus], list[ObjectReport]]:
    """The problems that warnings of the newest attempt report: the last of each pod, and all of other objects."""
    pods: dict[int, PodStatus] = {}
    said: list[ObjectReport] = []
    for warned in entries(of_newest_attempt(events), Warned):
        if warned.pod is not None:
            pods[warned.pod["node"]] = PodStatus(**warned.pod)
        elif warned.object is not None:
            said.append(ObjectReport(**warned.object))
    return pods, said
