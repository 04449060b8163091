"""Determines the nodes that are provisioned for an attempt's pods, from NodeClaims and events. Pure.

Only events relate a pod to the node that is provisioned for it: Karpenter nominates a pod for a NodeClaim, and Cluster
Autoscaler names the node group that it scales up. Only the conditions of a NodeClaim show the progress of a node.
Reasons and conditions are those of karpenter 1.14 and cluster-autoscaler 1.34.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from windlass.engines.kubernetes.objects.node_pools import CAPACITY_LABEL, POOL_LABEL
from windlass.engines.kubernetes.objects.observations import NodeClaimStatus, ObjectReport
from windlass.engines.kubernetes.objects.pod_template import INSTANCE_LABEL
from windlass.engines.kubernetes.objects.quantity import Json, condition, event_time, seconds_of
from windlass.runs.events import Event, NodeProvisioning, of_newest_attempt

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
NOMINATED: Final = "Nominated"
SCALED_UP: Final = "TriggeredScaleUp"
FAILED: Final = "FailedScheduling"
REFUSED: Final = "NotTriggerScaleUp"
OF_CLAIMS: Final = ("InsufficientCapacityError", "NodeClassNotReady", "UnregisteredTaintMissing")
"""Reasons of events that explain why a NodeClaim has no node."""
STEPS: Final = (("Launched", "launched"), ("Registered", "registered"), ("Initialized", "initialized"))
"""Conditions of a NodeClaim in the order in which they become true, each with the node state that it indicates."""
STATES: Final = ("asked", *(state for _, state in STEPS))
FINAL: Final = ("initialized", "gone")
LATE_SECONDS: Final = 60.0
"""Seconds after which an unfinished step is reported again, with its reason."""
MAX_MESSAGE: Final = 1500
_GROUP: Final = re.compile(r"\{?([\w./:-]+) (\d+)->(\d+)(?: \(max: (\d+)\))?\}?")
Answers = Mapping[str, Sequence[Json]]
"""Lists of objects by name: `claims`, `refused` and `of claims` (events), `pools`. Lists that the user may not read are
missing."""


def newest_events(events: Iterable[Json], pods: Collection[str]) -> dict[str, Json]:
    """Returns, by pod, the newest event from a node autoscaler. Events of the scheduler, some with the same reason as
    Karpenter's, are skipped.
    """
    found: dict[str, Json] = {}
    for event in sorted(events, key=event_time):
        about, reason = event.get("involvedObject", {}), event.get("reason")
        reporter = str(event.get("source", {}).get("component") or event.get("reportingComponent") or "")
        is_one = reason in (NOMINATED, SCALED_UP, REFUSED) or (reason == FAILED and reporter.startswith("karpenter"))
        if is_one and about.get("kind") == "Pod" and about.get("name") in pods:
            found[str(about["name"])] = event
    return found


def provisioned_by(event: Json, now: float) -> list[NodeClaimStatus]:
    """Returns the NodeClaim for which an event nominates a pod, or the node groups that are scaled up for the pod."""
    if event["reason"] == NOMINATED and (claim := re.search(r"nodeclaim/([\w.-]+)", _message(event))):
        return [NodeClaimStatus(claim[1], seconds=max(0.0, now - seconds_of(event_time(event), now)))]
    groups = _GROUP.findall(_message(event)) if event["reason"] == SCALED_UP else ()
    return [
        NodeClaimStatus(f"{name} {before}->{after}", pool=name, message=f"of at most {most}" if most else "")
        for name, before, after, most in groups
    ]


def provisioned(
    pods: Sequence[Json],
    events: Iterable[Json],
    answers: Answers,
    nodes: Sequence[Json],
    known: Sequence[NodeClaimStatus],
    now: float,
) -> tuple[tuple[NodeClaimStatus, ...], list[ObjectReport]]:
    """Returns the nodes that are provisioned for these pods, and reports of why a pod has none.

    `events` are the events of the namespace, `known` are nodes from an earlier call. The node of a scheduled pod is
    included if it is not ready, or was requested after the pod was created.
    """
    last = newest_events((*events, *answers.get("refused", ())), [pod["metadata"]["name"] for pod in pods])
    claims = {one["metadata"]["name"]: one for one in answers.get("claims", ())}
    placed = {node: pod["metadata"].get("creationTimestamp", "") for pod in pods if (node := node_of(pod))}
    found = {
        name: NodeClaimStatus(name)
        for name, one in claims.items()
        if (since := placed.get(one.get("status", {}).get("nodeName"))) is not None
        and (one["metadata"].get("creationTimestamp", "") >= since or claim_status(one, (), now).state not in FINAL)
    }
    found |= {one.name: one for one in known}
    for event in last.values():
        for one in provisioned_by(event, now):
            found.setdefault(one.name, one)
    now_there = tuple(
        claim_status(claims[name], nodes, now)
        if name in claims
        else one
        if is_group(one) or "claims" not in answers
        else one.replace(state="gone", reason="", message="", seconds=0.0)
        for name, one in found.items()
    )
    queued = [pod["metadata"] for pod in pods if not node_of(pod)]
    reports = [
        ObjectReport("Pod", name, last[name]["reason"], _message(last[name]))
        for name in (meta["name"] for meta in queued)
        if name in last and last[name]["reason"] in (FAILED, REFUSED)
    ]
    begun = min((meta.get("creationTimestamp", "") for meta in queued), default=None)
    return now_there, [*reports, *(_failures(answers, now_there, begun) if begun is not None else ())]


def _failures(answers: Answers, claims: Sequence[NodeClaimStatus], since: str) -> list[ObjectReport]:
    """Returns the failures of these NodeClaims, and of other NodeClaims that Karpenter has created in their place."""
    names, pools = {one.name for one in claims}, {one.name.rpartition("-")[0] for one in claims}
    found = []
    for event in sorted(answers.get("of claims", ()), key=event_time, reverse=True):
        name = str(event.get("involvedObject", {}).get("name", ""))
        is_ours = name in names or name.rpartition("-")[0] in pools
        if is_ours and event.get("reason") in OF_CLAIMS and event_time(event) >= since:
            message = _message(event).removeprefix(f"NodeClaim {name} event: ")
            found.append(ObjectReport("NodeClaim", name, event["reason"], message))
    return found


def node_of(pod: Json) -> str:
    """Returns the name of a pod's node; empty if the pod is not scheduled."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def is_group(one: NodeClaimStatus) -> bool:
    """Whether the status describes a scaled-up node group, whose new nodes cannot be told apart."""
    return " " in one.name


def _message(event: Json) -> str:
    return str(event.get("message") or "").strip()[:MAX_MESSAGE]


# -- NodeClaims -------------------------------------------------------------------------------------------------------


def claim_status(claim: Json, nodes: Iterable[Json], now: float) -> NodeClaimStatus:
    """Returns the current state of a NodeClaim; `now` is in Unix seconds. If the node is not ready, its own reason is
    included.
    """
    return steps(claim, nodes, now)[-1]


def steps(claim: Json, nodes: Iterable[Json], now: float) -> list[NodeClaimStatus]:
    """Returns all states that a NodeClaim has reached, the current one last."""
    status, labels = claim.get("status", {}), claim["metadata"].get("labels") or {}
    at = claim["metadata"].get("creationTimestamp")
    seen = NodeClaimStatus(
        str(claim["metadata"]["name"]), pool=labels.get(POOL_LABEL, ""), seconds=max(0.0, now - seconds_of(at, now))
    )
    found = [seen]
    for kind, state in STEPS:
        one = condition(claim, kind)
        if one.get("status") != "True":
            found[-1] = _with_reason(found[-1], one, nodes)
            break
        # The instance type is known from the launch on, the node name only from the registration on.
        seen = seen.replace(
            state=state,
            instance_type=labels.get(INSTANCE_LABEL, ""),
            zone=labels.get(ZONE_LABEL, ""),
            capacity_type=labels.get(CAPACITY_LABEL, ""),
            machine="" if state == "launched" else str(status.get("nodeName") or ""),
            seconds=max(0.0, now - seconds_of(one.get("lastTransitionTime"), now)),
        )
        found.append(seen)
    return found


def _with_reason(seen: NodeClaimStatus, pending: Json, nodes: Iterable[Json]) -> NodeClaimStatus:
    """Adds the reason why the next condition is not true, unless it is one of Karpenter's placeholders for `not
    yet`.
    """
    reason, message = str(pending.get("reason") or ""), str(pending.get("message") or "").strip()[:MAX_MESSAGE]
    if reason in ("", "AwaitingReconciliation", "Unknown", pending.get("type")):
        return seen
    for node in nodes:
        if reason == "NodeNotReady" and node["metadata"]["name"] == seen.machine:
            ready = condition(node, "Ready")
            own = ": ".join(str(ready[part]) for part in ("reason", "message") if ready.get(part))
            message = own or "its kubelet has not reported yet"
    return seen.replace(reason=reason, message=message)


# -- events in the record ---------------------------------------------------------------------------------------------


def event_of(seen: NodeClaimStatus) -> NodeProvisioning:
    """Returns the event that records a node's state, with a reason only if the current step is late."""
    shown = seen if is_late(seen) else seen.replace(reason="", message="")
    return NodeProvisioning(**{name: value for name in NodeProvisioning.fields() if (value := getattr(shown, name))})


def is_late(seen: NodeClaimStatus) -> bool:
    """Whether the current step of a node takes longer than LATE_SECONDS."""
    return seen.seconds > LATE_SECONDS


def recorded(events: Iterable[Event], now: float, *, every_attempt: bool = False) -> tuple[NodeClaimStatus, ...]:
    """Returns the last recorded state of each node that was provisioned for the newest attempt, or for any attempt;
    `now` is in Unix seconds.
    """
    found: dict[str, NodeClaimStatus] = {}
    for event in events if every_attempt else of_newest_attempt(events):
        if event.kind == NodeProvisioning.kind:
            one = NodeClaimStatus.from_json({**event.data, "seconds": max(0.0, now - event.time)})
            found[one.name] = one
    return tuple(found.values())


def still_there(nodes: Sequence[NodeClaimStatus]) -> tuple[NodeClaimStatus, ...]:
    """Returns the nodes that are not deleted, without node groups."""
    return tuple(one for one in nodes if one.state != "gone" and not is_group(one))
