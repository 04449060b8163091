"""Turns what Karpenter and Cluster Autoscaler write down into which machines come for the pods of an attempt. Pure.

Who a machine is for, only events tell: Karpenter nominates a pod for a NodeClaim, Cluster Autoscaler names the group
that it lets grow. How far the machine is stands in the NodeClaim, or nowhere. Sentences and conditions are those of
karpenter 1.14 (and its older ones, where they are known to differ) and of cluster-autoscaler 1.34.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from windlass.diagnose.observations import ComingSeen, ObjectSaid
from windlass.engines.kubernetes.manifests import INSTANCE_LABEL
from windlass.engines.kubernetes.pools import CAPACITY_LABEL, POOL_LABEL, ZONE_LABEL, condition, labels_of

Json = Mapping[str, Any]

NOMINATED: Final = "Nominated"
GROWS: Final = "TriggeredScaleUp"
FAILED: Final = "FailedScheduling"
REFUSED: Final = "NotTriggerScaleUp"
ON_THE_WAY: Final = (NOMINATED, GROWS)
"""Reasons of events of a pod for which a machine comes."""
NO_MACHINE: Final = (FAILED, REFUSED)
"""Reasons of events of a pod for which none can come."""
NO_CAPACITY: Final = "InsufficientCapacityError"
OF_CLAIMS: Final = (NO_CAPACITY, "NodeClassNotReady", "UnregisteredTaintMissing")
"""Reasons of events of a NodeClaim that tell why no machine comes of it."""
STEPS: Final = (("Launched", "launched"), ("Registered", "registered"), ("Initialized", "initialized"))
"""Conditions of a NodeClaim in the order in which they come true, and what we call it then."""
FINAL: Final = ("initialized", "gone")
LATE_SECONDS: Final = 60.0
MAX_MESSAGE: Final = 1500
_CLAIM: Final = re.compile(r"nodeclaim/([\w.-]+)")
_GROUP: Final = re.compile(r"\{?([\w./:-]+) (\d+)->(\d+)(?: \(max: (\d+)\))?\}?")


# -- events -----------------------------------------------------------------------------------------------------------


def of_karpenter(event: Json) -> bool:
    """Whether Karpenter says it: the scheduler has an event of the same name."""
    said_by = event.get("source", {}).get("component") or event.get("reportingComponent") or ""
    return str(said_by).startswith("karpenter")


def newest(events: Iterable[Json], pods: Collection[str]) -> dict[str, Json]:
    """By pod, what was last said of a machine for it."""
    found: dict[str, Json] = {}
    for event in sorted(events, key=when):
        about = event.get("involvedObject", {})
        is_one = event.get("reason") in (*ON_THE_WAY, *NO_MACHINE)
        is_one &= event.get("reason") != FAILED or of_karpenter(event)
        if is_one and about.get("kind") == "Pod" and about.get("name") in pods:
            found[str(about["name"])] = event
    return found


def when(event: Json) -> str:
    """When it was last said; as text it sorts."""
    series = (event.get("series") or {}).get("lastObservedTime")
    last = series or event.get("lastTimestamp") or event.get("eventTime")
    return str(last or event["metadata"].get("creationTimestamp") or "")


def refused(events: Mapping[str, Json]) -> Iterator[ObjectSaid]:
    """Why no machine can come for pods, each of which has said so last."""
    for name, event in events.items():
        if event["reason"] in NO_MACHINE:
            yield ObjectSaid("Pod", name, event["reason"], words_of(event))


def nominated(event: Json) -> str:
    """The NodeClaim that a pod was nominated for; empty where the machine is there already."""
    found = _CLAIM.search(words_of(event)) if event.get("reason") == NOMINATED else None
    return found[1] if found else ""


def groups(event: Json) -> list[ComingSeen]:
    """The node groups that Cluster Autoscaler lets grow for a pod."""
    if event.get("reason") != GROWS:
        return []
    return [
        ComingSeen(f"{name} {before}->{after}", pool=name, message=f"of at most {most}" if most else "")
        for name, before, after, most in _GROUP.findall(words_of(event))
    ]


def failures(events: Iterable[Json], names: Collection[str], pools: Collection[str], since: str) -> list[ObjectSaid]:
    """Why NodeClaims came to nothing, which are these or of these pools; of events since then, the newest first."""
    found = []
    for event in sorted(events, key=when, reverse=True):
        about = event.get("involvedObject", {})
        name = str(about.get("name", ""))
        is_ours = name in names or name.rpartition("-")[0] in pools
        if about.get("kind") == "NodeClaim" and is_ours and event.get("reason") in OF_CLAIMS and when(event) >= since:
            words = words_of(event).removeprefix(f"NodeClaim {name} event: ")
            found.append(ObjectSaid("NodeClaim", name, event["reason"], words))
    return found


def words_of(event: Json) -> str:
    """What it says."""
    return str(event.get("message") or "").strip()[:MAX_MESSAGE]


# -- claims -----------------------------------------------------------------------------------------------------------


def claim_seen(claim: Json, nodes: Iterable[Json] | None, now: float) -> ComingSeen:
    """How far a NodeClaim is at `now` (Unix seconds); `nodes` are the cluster's, None where they may not be listed."""
    status, labels = claim.get("status", {}), labels_of(claim)
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    state, since, why = "asked", claim["metadata"].get("creationTimestamp"), conditions.get("Launched", {})
    for at, (kind, called) in enumerate(STEPS):
        if conditions.get(kind, {}).get("status") != "True":
            break
        state, since = called, conditions[kind].get("lastTransitionTime")
        why = conditions.get(STEPS[at + 1][0], {}) if at + 1 < len(STEPS) else {}
    seen = ComingSeen(
        name=str(claim["metadata"]["name"]),
        pool=labels.get(POOL_LABEL, ""),
        state=state,
        instance_type=labels.get(INSTANCE_LABEL, ""),
        zone=labels.get(ZONE_LABEL, ""),
        capacity_type=labels.get(CAPACITY_LABEL, ""),
        machine=str(status.get("nodeName") or ""),
        reason=_reason(why),
        message=str(why.get("message") or "").strip()[:MAX_MESSAGE] if _reason(why) else "",
        seconds=max(0.0, now - seconds_of(str(since or ""), now)),
    )
    if seen.reason == "NodeNotReady" and (said := _of_node(seen.machine, nodes or ())):
        return replace(seen, message=said)
    return seen


def steps(claim: Json, seen: ComingSeen, now: float) -> list[ComingSeen]:
    """How a NodeClaim has come to where it is, each step as it was then; `seen` is what `claim_seen` gives."""
    conditions = {one["type"]: one for one in claim.get("status", {}).get("conditions", ())}
    times = {"asked": claim["metadata"].get("creationTimestamp")}
    times |= {called: conditions[kind].get("lastTransitionTime") for kind, called in STEPS if kind in conditions}
    order = ["asked", *(called for _, called in STEPS)]
    before = order[: order.index(seen.state)]
    then = replace(seen, reason="", message="")
    ages = {state: max(0.0, now - seconds_of(str(times.get(state) or ""), now)) for state in before}
    # What an instance is, its cloud has said when it was launched, and what its node is called, when it came.
    asked = replace(then, instance_type="", zone="", capacity_type="", machine="")
    known = {"asked": asked, "launched": replace(then, machine="")}
    return [*(replace(known.get(state, then), state=state, seconds=ages[state]) for state in before), seen]


def _reason(condition: Json) -> str:
    """Karpenter's word for why a step is not done; where it has none, it is only on the way."""
    reason = str(condition.get("reason") or "")
    return "" if reason in ("AwaitingReconciliation", "Unknown", condition.get("type")) else reason


def _of_node(name: str, nodes: Iterable[Json]) -> str:
    """What a node that is not ready says of itself."""
    for node in nodes:
        if node["metadata"]["name"] == name:
            ready = condition(node, "Ready")
            words = ": ".join(str(ready[part]) for part in ("reason", "message") if ready.get(part))
            return words or "its kubelet has not said anything yet"
    return ""


def seconds_of(text: str, otherwise: float) -> float:
    """A time of the API server in Unix seconds."""
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return otherwise


# -- the record -------------------------------------------------------------------------------------------------------


def event_of(seen: ComingSeen) -> dict[str, Any]:
    """What the event `machine` of a record carries. Why it is no further is of interest where it is late."""
    told = seen if is_late(seen) else replace(seen, reason="", message="")
    return {name: value for name, value in asdict(told).items() if value and name != "seconds"}


def is_late(seen: ComingSeen) -> bool:
    """Whether a machine takes longer for a step than most do."""
    return seen.seconds > LATE_SECONDS


def recorded(events: Iterable[Any], now: float, *, every_attempt: bool = False) -> tuple[ComingSeen, ...]:
    """The machines that came for the newest attempt, or for any, each as it was last seen; `now` is in Unix seconds."""
    found: dict[str, ComingSeen] = {}
    for event in events:
        if event.kind == "attempt" and not every_attempt:
            found = {}
        elif event.kind == "machine":
            data = {name: value for name, value in event.data.items() if name != "left"}
            found[data["name"]] = ComingSeen(**data, seconds=max(0.0, now - event.time))
    return tuple(found.values())


def left(machines: Sequence[ComingSeen]) -> tuple[ComingSeen, ...]:
    """Of machines that were made, those that are not gone; what a node group has grown by, nobody can tell apart."""
    return tuple(one for one in machines if one.state != "gone" and " " not in one.name)
