"""Turns what the API server says of pods and events into what a diagnosis, and a record, want to know. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from windlass.diagnose.observations import MachineSeen, ObjectSaid, PodSeen
from windlass.engines.kubernetes import layout
from windlass.plan.pods import pod_spec

Json = Mapping[str, Any]

ON_THE_WAY: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Why a container waits where nothing is wrong."""
OUR_POLICY: Final = frozenset(
    {"BackoffLimitExceeded", "FailedJobs", "ReachedMaxRestarts", "PyTorchJobFailed", "MPIJobFailed", "JobSetFailed"}
)
"""How what makes pods says that one of it has failed, which ends an attempt as we have asked."""
OF_QUEUES: Final = frozenset({
    "Suspended", "SuspendedJobs", "ResumeJobs", "Stopped", "PyTorchJobSuspended", "PyTorchJobResumed",
    "MPIJobSuspended", "MPIJobResumed", "CreatedWorkload", "UpdatedWorkload", "DeletedWorkload", "FinishedWorkload",
    "UpdatedAdmissionCheck",
})  # fmt: skip
"""Reasons of events of what a queue holds back, or puts out, of which the queue itself says why."""
OF_OPERATORS: Final = frozenset({
    "SuccessfulCreatePod", "SuccessfulCreateService", "SuccessfulDeletePod", "SuccessfulDeleteService",
    "ExitedWithCode",
    *(f"{kind}Job{what}" for kind in ("PyTorch", "MPI") for what in ("Created", "Running", "Succeeded", "Failed")),
})  # fmt: skip
"""Reasons of events in which Kubeflow's operators tell that they have done their work."""
ORDINARY: Final = frozenset({
    "Scheduled", "Pulling", "Pulled", "Created", "Started", "SuccessfulCreate", "SuccessfulDelete", "Completed",
    "SuccessfulAttachVolume", "BackOff", "Failed", "FailedScheduling", "Killing", "ProvisioningSucceeded",
    "Provisioning", "ExternalProvisioning", "Resumed", *OUR_POLICY, *OF_QUEUES, *OF_OPERATORS,
})  # fmt: skip
"""Reasons of events that tell of no trouble, or of one that the pod itself tells of too."""
OF_SCALING: Final = frozenset({"Nominated", "TriggeredScaleUp", "NotTriggerScaleUp"})
"""Reasons of events that tell of machines that come, or do not, which are read by themselves (`coming.py`)."""
NOT_ORDINARY: Final = ",".join(f"reason!={reason}" for reason in sorted(ORDINARY))
"""The same as what the API server is asked for."""
MAX_WORDS: Final = 1500
"""Characters of a sentence of the cluster that are kept: the scheduler names each kind of machine that does not fit."""
_COUNTS: Final = re.compile(r"\d+")
_TAGGED: Final = re.compile(r"^\[(\d+|n|w|a)\]\+?r? ", re.MULTILINE)
"""A line of the log of one of our pods (`worker/pod.py`)."""


def pod_seen(node: int, pod: Json | None) -> PodSeen:
    """What is known of the pod that plays a node, as the API server has it; None where there is none."""
    if pod is None:
        return PodSeen(node)
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    machine = pod.get("spec", {}).get("nodeName", "")
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    where, data = container_state(pod)

    def found(state: str, reason: str = "", message: str = "") -> PodSeen:
        return PodSeen(node, name, state, reason, message.strip()[:MAX_WORDS], machine, data.get("exitCode"))

    has_ended = where == "terminated" or status.get("phase") in ("Succeeded", "Failed")
    state = "ended" if has_ended else "running" if where == "running" else "pulling" if machine else "queued"
    # The container knows best what it died of, but "Error" is no more than that its exit code was not 0.
    if where == "terminated" and data.get("reason") not in ("Error", "Completed", "ContainerStatusUnknown", None):
        return found("ended", data["reason"], last_words(data))
    disruption = conditions.get("DisruptionTarget", {})
    if disruption.get("status") == "True" and (reason := disruption.get("reason")):
        # Of a kubelet that ends a pod, the pod itself tells why.
        told = status if reason == "TerminationByKubelet" and status.get("reason") else disruption
        return found(state, told["reason"], told.get("message", ""))
    if status.get("reason"):
        return found(state, status["reason"], status.get("message", ""))
    is_deleted = "deletionTimestamp" in pod["metadata"]
    if state == "ended":
        return found("ended", "Deleted" if is_deleted else data.get("reason", ""), last_words(data))
    if state == "running":
        is_silent = conditions.get("Ready", {}).get("status") == "False"  # it has no probe that could fail
        return found("running", "Deleted" if is_deleted else "NodeNotReady" if is_silent else "")
    placed = conditions.get("PodScheduled", {})
    why = placed if placed.get("status") == "False" else data
    if is_deleted and why.get("reason") in (None, *ON_THE_WAY):
        return found(state, "Deleted")
    return found(state, why.get("reason", ""), why.get("message", ""))


def container_state(pod: Json) -> tuple[str, Json]:
    """Whether its container is `waiting`, `running` or `terminated`, and what is known of that."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    name = layout.container_of(pod) if statuses else ""
    for one in statuses:
        if one["name"] == name:
            # One that was started again, by a runtime's own policy, has ended for us: nothing is trained in it.
            for state, data in (one["lastState"] if is_restarted(pod) else one["state"]).items():
                return state, data or {}
    return "waiting", {}


def last_words(ended: Json) -> str:
    """What a container that has ended says: what broke it, or the end of its log, of which the record has more."""
    words = str(ended.get("message") or "")
    if not _TAGGED.search(words):
        return words
    kept = [line.removeprefix("[w] ") for line in words.splitlines() if line.startswith("[w] ")]
    return "\n".join(kept)


def is_restarted(pod: Json) -> bool:
    """Whether its container was started again after it had ended."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    name = layout.container_of(pod) if statuses else ""
    return any(one["name"] == name and one.get("restartCount", 0) > 0 and one.get("lastState") for one in statuses)


def is_trouble(pod: PodSeen) -> bool:
    """Whether what is known of a pod is worth a warning."""
    return bool(pod.reason) and pod.reason not in ON_THE_WAY and pod.reason not in ("Error", "Completed")


def key(seen: PodSeen | ObjectSaid) -> str:
    """To know a trouble again: pods of one attempt, and one hour and the next, differ in names and numbers alone."""
    return f"{seen.reason} {_COUNTS.sub('#', seen.message.replace(seen.name, 'it') if seen.name else seen.message)}"


def objects_said(
    events: Iterable[Json], run_id: str, number: int, *, claims: Iterable[str] = ()
) -> Iterator[ObjectSaid]:
    """What events of a namespace say of an attempt and of claims that it needs, each once, the newest first."""
    name, seen, wanted = layout.attempt_name(run_id, number), set[tuple[str, str]](), {run_id, *claims}
    for event in sorted(events, key=_when, reverse=True):
        about = event.get("involvedObject", {})
        called = str(about.get("name", ""))
        is_its = called == name or called.startswith(f"{name}-")
        is_claim = about.get("kind") == "PersistentVolumeClaim" and called in wanted
        if not (is_its or is_claim) or event.get("reason") in (*ORDINARY, *OF_SCALING):
            continue
        said = ObjectSaid(about.get("kind", ""), called, event.get("reason", ""),
                          str(event.get("message") or "").strip()[:MAX_WORDS])  # fmt: skip
        if (once := (said.kind, key(said))) not in seen:
            seen.add(once)
            yield said


def claims_of(made: Iterable[Json]) -> list[str]:
    """The claims that the pods mount that these objects are made for."""
    volumes = pod_spec(made).get("volumes", ())
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def _when(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def machine_seen(node: Json) -> MachineSeen:
    """A node, as the scheduler looks at it."""
    status, meta = node.get("status", {}), node["metadata"]
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
    return MachineSeen(meta["name"], is_ready, status.get("allocatable", {}), meta.get("labels", {}))


def ends_of(owner: Json | None, kind: str, name: str) -> Iterator[ObjectSaid]:
    """Why no more pods will come of what makes them; None is one that was deleted."""
    if owner is None:
        yield ObjectSaid(kind, name, "Deleted", f"{kind} {name} was deleted")
        return
    for condition in owner.get("status", {}).get("conditions", ()):
        is_end = condition["type"] in ("Failed", "FailureTarget") and condition["status"] == "True"
        if is_end and condition.get("reason") not in OUR_POLICY:
            yield ObjectSaid(kind, name, condition.get("reason", "Failed"), condition.get("message", ""))


# -- the record -------------------------------------------------------------------------------------------------------


def warning(seen: PodSeen | ObjectSaid) -> dict[str, Any]:
    """What a warning in the record carries of a trouble."""
    words = ": ".join(part for part in (seen.reason, seen.message) if part)
    if isinstance(seen, ObjectSaid):
        return {"message": f"{seen.kind} {seen.name}: {words}", "object": asdict(seen), "waits": True}
    return {"message": f"pod {seen.name}: {words}", "pod": asdict(seen), "waits": seen.state in ("queued", "pulling")}


def recorded(events: Iterable[Any]) -> tuple[dict[int, PodSeen], list[ObjectSaid]]:
    """What the warnings of the newest attempt tell: the last of each pod, and all of other objects."""
    pods: dict[int, PodSeen] = {}
    said: list[ObjectSaid] = []
    for event in events:
        if event.kind == "attempt":
            pods, said = {}, []
        elif event.kind == "warning" and "pod" in event.data:
            pods[event.data["pod"]["node"]] = PodSeen(**event.data["pod"])
        elif event.kind == "warning" and "object" in event.data:
            said.append(ObjectSaid(**event.data["object"]))
    return pods, said
