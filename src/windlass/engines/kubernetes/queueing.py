"""Turns Kueue's objects into what they say of one attempt: how far it is, and why it waits or was evicted. Pure.

Kueue makes a Workload for each object that names a queue, and holds the object back by suspending it. From 0.18 on a
Workload says in one word why it waits (kueue KEP-10852); of older ones that word is read from their sentence. Sentences
and conditions are those of kueue 0.15 to 0.19. How many wait and who has the quota is in `quotas.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from windlass.diagnose.observations import QueueSeen
from windlass.engines.kubernetes import layout

Json = Mapping[str, Any]

GROUP: Final = "kueue.x-k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""That are read, the newest first; in all of them the fields that are used here are the same."""
JOB_UID_LABEL: Final = f"{GROUP}/job-uid"
"""Of a Workload: for which object it was made."""
UNNAMED: Final = ("Pending", "Inadmissible", "Waiting", "")
"""Reasons of versions that say why in a sentence alone."""
WAITS: Final = ("waiting", "requeued")
MAX_MESSAGE: Final = 1500

_MEANINGS: Final = (
    (r"workload is deactivated", "Deactivated"),
    (r"doesn't exist|terminating or missing|ClusterQueue \S+ not found|doesn't match ClusterQueue selector|"
     r"resource \S+ unavailable in ClusterQueue|requests must not exceed|LimitRange|claims? not supported",
     "Misconfigured"),
    (r"is (?:inactive|stopped)", "Suspended"),
    (r"[Aa]dmission is gated", "AdmissionGated"),
    (r"PodsReady condition", "WaitingForPodsReady"),
    (r"preemption of \d+ workload|overlapping preemption targets|[Pp]reempting \d+ workload",
     "WaitingForPreemptedWorkloads"),
    (r"borrowing limit .*exceeded", "BorrowingLimitReached"),
    (r"insufficient unused quota|no longer fits after processing", "WaitingForQuota"),
    (r"insufficient quota", "ExceedsMaxQuota"),
    (r"allows to fit only|topology \S+ doesn't allow", "TopologyPlacementFailed"),
    (r"untolerated taint|doesn't match node affinity|flavor \S+ not found", "NoMatchingFlavor"),
)  # fmt: skip
"""Sentences and what they mean; of several, the first. A flavor that is in use is told of before those that do not fit,
for that is the one to wait for."""
_SHORT: Final = re.compile(r"insufficient (?:unused )?quota for (\S+) in flavor [^\s,]+|"
                           r"borrowing limit for (\S+) in flavor \S+ exceeded")  # fmt: skip
NOT_SEEN: Final = "the workload with UID "
"""How one is called that is not among those that were looked at."""
_PREEMPTOR: Final = re.compile(r"accommodate a workload \(UID: ([^,)]+)(?:, JobUID: ([^,)]+))?")


def api_of(served: Collection[str]) -> str:
    """The API to ask, of those that a cluster serves: `kueue.x-k8s.io/v1beta2`; empty where it has no Kueue."""
    return next((f"{GROUP}/{one}" for one in VERSIONS if f"{GROUP}/{one}" in served), "")


# -- the object that makes the pods -----------------------------------------------------------------------------------


def is_suspended(maker: Json) -> bool:
    """Whether somebody holds back what makes the pods; where that stands depends on its kind."""
    spec = maker.get("spec", {})
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def queue_of(maker: Json) -> str:
    """The LocalQueue that it names; empty where it names none."""
    return str(maker["metadata"].get("labels", {}).get(layout.QUEUE_LABEL, ""))


def workload_of(maker: Json, workloads: Iterable[Json]) -> Json | None:
    """The Workload that stands for it; the newest where there are several."""
    meta = maker["metadata"]
    found = [
        one
        for one in workloads
        for owner in one["metadata"].get("ownerReferences", ())
        if owner.get("uid") == meta.get("uid") and (owner["kind"], owner["name"]) == (maker["kind"], meta["name"])
    ]
    return max(found, key=created, default=None)


# -- what is said of it -----------------------------------------------------------------------------------------------


def queue_seen(
    maker: Json,
    workloads: Iterable[Json],
    local_queues: Sequence[Json] | None = None,
    cluster_queue: Json | None = None,
) -> QueueSeen | None:
    """What Kueue makes of `maker`; None where no queue has to do with it.

    `workloads` and `local_queues` are those that may be read, `cluster_queue` that of its queue; None where these may
    not be read.
    """
    workloads, namespace = list(workloads), maker["metadata"].get("namespace")
    here = None if local_queues is None else [one for one in local_queues if one["metadata"]["namespace"] == namespace]
    names = None if here is None else tuple(sorted(one["metadata"]["name"] for one in here))
    workload, queue = workload_of(maker, workloads), queue_of(maker)
    if workload is None:
        if not (queue or is_suspended(maker)):
            return None
        return QueueSeen("waiting" if is_suspended(maker) else "admitted", queue=queue, queues=names)
    queue = str(workload["spec"].get("queueName") or queue)
    local = next((one for one in here or () if one["metadata"]["name"] == queue), None)
    state, reason, message = _state(workload, local, cluster_queue)
    return QueueSeen(
        state, reason, message, queue, cluster_queue_of(workload, local), workload["metadata"]["name"],
        priority_of(workload), lacking=lacking(message), queues=names, by=_preemptor(workload, workloads),
    )  # fmt: skip


def eviction_seen(maker: Json, workloads: Iterable[Json]) -> QueueSeen | None:
    """Why Kueue has suspended `maker` again, also where it waits anew by now; None where it says nothing of it."""
    workloads = list(workloads)
    seen, workload = queue_seen(maker, workloads), workload_of(maker, workloads)
    if seen is None or workload is None or not is_true(workload, "Evicted"):
        return None
    reason, message = _said(workload, "Evicted")
    return replace(seen, state="evicted", reason=reason, message=message, lacking=())


def reason_in(message: str) -> str:
    """The word that newer versions have for a sentence of older ones; empty for one that is not known."""
    return next((reason for pattern, reason in _MEANINGS if re.search(pattern, message)), "")


def lacking(message: str) -> tuple[str, ...]:
    """The resources of which there is too little, as a sentence of Kueue names them."""
    return tuple(dict.fromkeys(found[1] or found[2] for found in _SHORT.finditer(message)))


def inactive(queue: Json) -> str:
    """Why a LocalQueue or ClusterQueue admits nothing, in Kueue's words; empty where it is active."""
    active = condition(queue, "Active")
    return str(active.get("message") or active.get("reason")) if active.get("status") == "False" else ""


def _state(workload: Json, local: Json | None, cluster_queue: Json | None) -> tuple[str, str, str]:
    """How far a Workload is, why, and Kueue's sentence on that."""
    if is_true(workload, "Finished"):
        return "finished", *_said(workload, "Finished")
    is_off = workload["spec"].get("active") is False  # which Kueue calls an eviction also of one that only waited
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
        is_old = message in ("", _said(workload, "Evicted")[1])  # nobody has looked at it since
        reason = "PendingEvaluation" if is_old else reason_in(message) or "Pending"
    return _why_inactive(message, local, cluster_queue) if reason == "Suspended" else (reason, message)


def _why_inactive(message: str, local: Json | None, cluster_queue: Json | None) -> tuple[str, str]:
    """Kueue calls a queue inactive also where nobody has stopped it, and what it refers to is not there."""
    if any((queue or {}).get("spec", {}).get("stopPolicy", "None") != "None" for queue in (local, cluster_queue)):
        return "Suspended", message
    if cluster_queue is not None and (why := inactive(cluster_queue)):
        return "Misconfigured", f"{message}: {why}"
    return "Suspended", message


def _checks(workload: Json) -> str:
    """The admission checks that have not been passed."""
    return "; ".join(
        f"{one['name']} is {one['state']}" + (f": {one['message']}" if one.get("message") else "")
        for one in workload.get("status", {}).get("admissionChecks", ())
        if one["state"] != "Ready"
    )


def _preemptor(workload: Json, known: Iterable[Json]) -> str:
    """For whom it was preempted: by name where that one may be seen, else as Kueue says."""
    if not is_true(workload, "Preempted"):
        return ""
    found = _PREEMPTOR.search(_said(workload, "Preempted")[1])
    if found is None:
        return ""
    # A Workload may have been made anew by now, for the same object.
    named = next((one for one in known if {found[1], found[2]} & {uid_of(one), *_owners(one)}), None)
    here = workload["metadata"]["namespace"]
    return called(named, here) if named is not None else f"{NOT_SEEN}{found[1]}"


def _owners(workload: Json) -> Iterator[str]:
    return (str(owner.get("uid", "")) for owner in workload["metadata"].get("ownerReferences", ()))


# -- what objects say -------------------------------------------------------------------------------------------------


def condition(found: Json, kind: str) -> Json:
    """One of an object's conditions; empty where it does not have it."""
    return next((one for one in found.get("status", {}).get("conditions", ()) if one["type"] == kind), {})


def is_true(found: Json, kind: str) -> bool:
    """Whether one of an object's conditions holds."""
    return condition(found, kind).get("status") == "True"


def _said(found: Json, kind: str) -> tuple[str, str]:
    one = condition(found, kind)
    return str(one.get("reason", "")), str(one.get("message", "")).strip()[:MAX_MESSAGE]


def called(workload: Json, namespace: str) -> str:
    """What a Workload stands for, as a person knows it: `Job digits-7f3k2-1`, `Job b/other` in another namespace."""
    meta = workload["metadata"]
    owner = next(iter(meta.get("ownerReferences", ())), {"kind": "Workload", "name": meta["name"]})
    place = "" if meta["namespace"] == namespace else f"{meta['namespace']}/"
    return f"{owner['kind']} {place}{owner['name']}"


def cluster_queue_of(workload: Json, local: Json | None) -> str:
    """Where its quota is, or would be; empty where that may not be known."""
    admission = workload.get("status", {}).get("admission") or {}
    return str(admission.get("clusterQueue") or (local or {}).get("spec", {}).get("clusterQueue", ""))


def priority_of(workload: Json) -> int:
    """What queues order it by."""
    return int(workload["spec"].get("priority") or 0)


def created(workload: Json) -> str:
    """When it was made; as text it sorts."""
    return str(workload["metadata"].get("creationTimestamp", ""))


def uid_of(workload: Json) -> str:
    """What no other object has, now or later."""
    return str(workload["metadata"].get("uid", ""))


# -- the record -------------------------------------------------------------------------------------------------------


def event_of(seen: QueueSeen, *, is_again: bool) -> dict[str, Any]:
    """What the event `queue` of a record carries; `is_again`: an attempt before was admitted."""
    state = "requeued" if is_again and seen.state == "waiting" else seen.state
    told = {"state": state, "queue": seen.queue, "cluster_queue": seen.cluster_queue, "workload": seen.workload,
            "reason": seen.reason, "message": seen.message, "by": seen.by}  # fmt: skip
    return {name: value for name, value in told.items() if value}


def recorded(events: Iterable[Any]) -> QueueSeen | None:
    """What the queue said last of the newest attempt, as the record knows it."""
    last: Json | None = None
    for event in events:
        if event.kind == "attempt":
            last = None
        elif event.kind == "queue":
            last = event.data
    return None if last is None else QueueSeen(**last, lacking=lacking(last.get("message", "")))
