"""Derives Kueue's state of one attempt: whether it is admitted, and why it is pending or was evicted. Pure.

Kueue creates a Workload for each object with a queue name, and suspends the object until the Workload is admitted. From
0.18 on, a Workload has the reason why it waits (kueue KEP-10852). Older versions report only `Pending` and a message,
from which this module derives the same reason. Messages and conditions are those of kueue 0.15 to 0.19.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.observations import QueueStatus
from windlass.engines.kubernetes.objects.quantity import Json, condition, is_true
from windlass.runs.events import Event, QueueChanged, entries, of_newest_attempt

GROUP: Final = "kueue.x-k8s.io"
JOB_UID_LABEL: Final = f"{GROUP}/job-uid"
"""Label of a Workload with the uid of its owner object."""
UNNAMED: Final = ("Pending", "Inadmissible", "Waiting", "")
"""Reasons reported by older kueue versions, which give the cause only in a message."""
WAITS: Final = ("waiting", "requeued")
MAX_MESSAGE: Final = 1500

_MEANINGS: Final = (
    (r"workload is deactivated", "Deactivated"),
    (
        r"doesn't exist|terminating or missing|ClusterQueue \S+ not found|doesn't match ClusterQueue selector|"
        r"resource \S+ unavailable in ClusterQueue|requests must not exceed|LimitRange|claims? not supported",
        "Misconfigured",
    ),
    (r"is (?:inactive|stopped)", "Suspended"),
    (r"[Aa]dmission is gated", "AdmissionGated"),
    (r"PodsReady condition", "WaitingForPodsReady"),
    (
        r"preemption of \d+ workload|overlapping preemption targets|[Pp]reempting \d+ workload",
        "WaitingForPreemptedWorkloads",
    ),
    (r"borrowing limit .*exceeded", "BorrowingLimitReached"),
    (r"insufficient unused quota|no longer fits after processing", "WaitingForQuota"),
    (r"insufficient quota", "ExceedsMaxQuota"),
    (r"allows to fit only|topology \S+ doesn't allow", "TopologyPlacementFailed"),
    (r"untolerated taint|doesn't match node affinity|flavor \S+ not found", "NoMatchingFlavor"),
)
"""Patterns for messages of older kueue versions, with the reasons of newer ones; the first match counts. A flavor with
used-up quota precedes flavors that do not fit, since the workload waits for that quota."""
_SHORT: Final = re.compile(
    r"insufficient (?:unused )?quota for (\S+) in flavor [^\s,]+|"
    r"borrowing limit for (\S+) in flavor \S+ exceeded"
)
NOT_SEEN: Final = "the workload with UID "
"""Start of the description of a Workload that the user may not read."""
_PREEMPTOR: Final = re.compile(r"accommodate a workload \(UID: ([^,)]+)(?:, JobUID: ([^,)]+))?")


# -- the owner object -----------------------------------------------------------------------------------


def is_suspended(owner: Json) -> bool:
    """Whether the owner object of the pods is suspended; the location of the field depends on the object's kind."""
    spec = owner.get("spec", {})
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def queue_of(owner: Json) -> str:
    """Returns the name of the LocalQueue in an object's labels; empty if there is none."""
    return str(owner["metadata"].get("labels", {}).get(layout.QUEUE_LABEL, ""))


def workload_of(owner: Json, workloads: Iterable[Json]) -> Json | None:
    """Returns the newest Workload that Kueue created for an owner object; None if there is none."""
    meta = owner["metadata"]
    found = [
        one
        for one in workloads
        for ref in one["metadata"].get("ownerReferences", ())
        if (ref.get("uid"), ref["kind"], ref["name"]) == (meta.get("uid"), owner["kind"], meta["name"])
    ]
    return max(found, key=created, default=None)


# -- what Kueue reports -----------------------------------------------------------------------------------------------


def queue_status(
    owner: Json,
    workloads: Iterable[Json],
    local_queues: Sequence[Json] | None = None,
    cluster_queue: Json | None = None,
) -> QueueStatus | None:
    """Returns Kueue's status of `owner`; None if `owner` uses no queue.

    `workloads` and `local_queues` are those that the user may read; `cluster_queue` is the ClusterQueue of the owner's
    queue. Objects that may not be read are None.
    """
    workloads, namespace = list(workloads), owner["metadata"].get("namespace")
    here = None if local_queues is None else [one for one in local_queues if one["metadata"]["namespace"] == namespace]
    names = None if here is None else tuple(sorted(one["metadata"]["name"] for one in here))
    workload, queue = workload_of(owner, workloads), queue_of(owner)
    if workload is None:
        if not (queue or is_suspended(owner)):
            return None
        return QueueStatus("waiting" if is_suspended(owner) else "admitted", queue=queue, queues=names)
    queue = str(workload["spec"].get("queueName") or queue)
    local = next((one for one in here or () if one["metadata"]["name"] == queue), None)
    state, reason, message = _state(workload, local, cluster_queue)
    return QueueStatus(
        state,
        queue,
        cluster_queue_of(workload, local),
        workload["metadata"]["name"],
        reason,
        message,
        _preemptor(workload, workloads),
        priority_of(workload),
        lacking=lacking(message),
        queues=names,
    )


def eviction_status(owner: Json, workloads: Iterable[Json]) -> QueueStatus | None:
    """Returns why Kueue has suspended `owner` again, even if `owner` is queued again by now; None if Kueue reports no
    eviction.
    """
    workloads = list(workloads)
    seen, workload = queue_status(owner, workloads), workload_of(owner, workloads)
    if seen is None or workload is None or not is_true(workload, "Evicted"):
        return None
    reason, message = _said(workload, "Evicted")
    return seen.replace(state="evicted", reason=reason, message=message, lacking=())


def is_deactivated(seen: QueueStatus) -> bool:
    """Whether a Workload was evicted by deactivation: `Deactivated` by an administrator, or `DeactivatedDueTo…` by
    Kueue, for example after the maximum execution time.
    """
    return seen.state == "evicted" and seen.reason.startswith("Deactivated")


def reason_in(message: str) -> str:
    """Returns the reason that newer Kueue versions report in place of this message; empty for an unknown message."""
    return next((reason for pattern, reason in _MEANINGS if re.search(pattern, message)), "")


def lacking(message: str) -> tuple[str, ...]:
    """Returns the resources with insufficient quota, parsed from Kueue's message."""
    return tuple(dict.fromkeys(found[1] or found[2] for found in _SHORT.finditer(message)))


def inactive(queue: Json) -> str:
    """Returns Kueue's reason why a LocalQueue or ClusterQueue admits no workloads; empty for an active queue."""
    active = condition(queue, "Active")
    return str(active.get("message") or active.get("reason")) if active.get("status") == "False" else ""


def _state(workload: Json, local: Json | None, cluster_queue: Json | None) -> tuple[str, str, str]:
    """Returns the state, the reason and Kueue's message for a Workload."""
    if is_true(workload, "Finished"):
        return "finished", *_said(workload, "Finished")
    # A deactivated Workload is reported as evicted, even if it was never admitted.
    is_off = workload["spec"].get("active") is False
    if is_true(workload, "Evicted") and not is_true(workload, "Requeued") and not is_off:
        return "evicted", *_said(workload, "Evicted")
    if is_true(workload, "Admitted"):
        return "admitted", *_said(workload, "Admitted")
    is_again = is_true(workload, "Evicted") and not is_off
    return "requeued" if is_again else "waiting", *_why_waiting(workload, local, cluster_queue)


def _why_waiting(workload: Json, local: Json | None, cluster_queue: Json | None) -> tuple[str, str]:
    reason, message = _said(workload, "QuotaReserved")
    if workload["spec"].get("active") is False:
        return "Deactivated", message
    if is_true(workload, "QuotaReserved"):
        return "UnsatisfiedAdmissionChecks", _checks(workload)
    if reason in UNNAMED:
        # Until Kueue has evaluated the Workload again, its message is that of the eviction.
        is_old = message in ("", _said(workload, "Evicted")[1])
        reason = "PendingEvaluation" if is_old else reason_in(message) or "Pending"
    return _why_inactive(message, local, cluster_queue) if reason == "Suspended" else (reason, message)


def _why_inactive(message: str, local: Json | None, cluster_queue: Json | None) -> tuple[str, str]:
    """Returns reason and message for an inactive queue. A queue is also inactive if an object that it refers to is
    missing.
    """
    if any((queue or {}).get("spec", {}).get("stopPolicy", "None") != "None" for queue in (local, cluster_queue)):
        return "Suspended", message
    if cluster_queue is not None and (why := inactive(cluster_queue)):
        return "Misconfigured", f"{message}: {why}"
    return "Suspended", message


def _checks(workload: Json) -> str:
    return "; ".join(
        f"{one['name']} is {one['state']}" + (f": {one['message']}" if one.get("message") else "")
        for one in workload.get("status", {}).get("admissionChecks", ())
        if one["state"] != "Ready"
    )


def _preemptor(workload: Json, known: Iterable[Json]) -> str:
    """Returns the name of the workload that preempted this one; Kueue's description if the user may not read that
    workload.
    """
    if not is_true(workload, "Preempted"):
        return ""
    found = _PREEMPTOR.search(_said(workload, "Preempted")[1])
    if found is None:
        return ""
    # The preempting Workload may have been replaced by a new one for the same object.
    named = next((one for one in known if {found[1], found[2]} & {uid_of(one), *_owners(one)}), None)
    here = workload["metadata"]["namespace"]
    return called(named, here) if named is not None else f"{NOT_SEEN}{found[1]}"


def _owners(workload: Json) -> Iterator[str]:
    return (str(ref.get("uid", "")) for ref in workload["metadata"].get("ownerReferences", ()))


# -- fields of Kueue's objects -----------------------------------------------------------------------------------------


def _said(found: Json, kind: str) -> tuple[str, str]:
    one = condition(found, kind)
    return str(one.get("reason", "")), str(one.get("message", "")).strip()[:MAX_MESSAGE]


def called(workload: Json, namespace: str) -> str:
    """Describes the object that a Workload was created for: `Job digits-7f3k2-1`, or `Job b/other` in another
    namespace.
    """
    meta = workload["metadata"]
    ref = next(iter(meta.get("ownerReferences", ())), {"kind": "Workload", "name": meta["name"]})
    place = "" if meta["namespace"] == namespace else f"{meta['namespace']}/"
    return f"{ref['kind']} {place}{ref['name']}"


def cluster_queue_of(workload: Json, local: Json | None) -> str:
    """Returns the name of the ClusterQueue whose quota a Workload uses; empty if it is unknown."""
    admission = workload.get("status", {}).get("admission") or {}
    return str(admission.get("clusterQueue") or (local or {}).get("spec", {}).get("clusterQueue", ""))


def priority_of(workload: Json) -> int:
    """Returns the priority of a Workload, 0 by default."""
    return int(workload["spec"].get("priority") or 0)


def created(workload: Json) -> str:
    """Returns the creation timestamp of a Workload; the order of timestamps as text is chronological."""
    return str(workload["metadata"].get("creationTimestamp", ""))


def uid_of(workload: Json) -> str:
    """Returns the uid of a Workload."""
    return str(workload["metadata"].get("uid", ""))


# -- events in the record ---------------------------------------------------------------------------------------------


def event_of(seen: QueueStatus, *, is_again: bool) -> QueueChanged:
    """Returns the event that records a queue status. With `is_again`, an earlier attempt was admitted, so `waiting` is
    recorded as `requeued`.
    """
    reported = {name: value for name in QueueChanged.fields() if (value := getattr(seen, name))}
    return QueueChanged(**reported | {"state": "requeued"} if is_again and seen.state == "waiting" else reported)


def recorded(events: Iterable[Event]) -> QueueStatus | None:
    """Returns the last recorded queue status of the newest attempt; None if none was recorded."""
    found = list(entries(of_newest_attempt(events), QueueChanged))
    return QueueStatus.from_json(found[-1].to_json()).replace(lacking=lacking(found[-1].message)) if found else None
