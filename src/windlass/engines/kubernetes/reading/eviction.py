"""Reads why a pod was evicted on purpose, by a drain or a node autoscaler, if Karpenter reports the reason.

The Eviction API sets the pod's condition `DisruptionTarget` without a specific reason. A moment later, Karpenter
reports the reason as an event of the pod: `Evicted`, or `Disrupted` if the lifetime of the pod's node is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.quantity import condition, event_time, is_true
from windlass.errors import EngineError

BY_API: Final = "EvictionByEvictionAPI"
"""Reason in the condition `DisruptionTarget` of a pod that was evicted through the API, for example by a drain,
Karpenter or Cluster Autoscaler."""
KARPENTER: Final = "by Karpenter: "
"""Prefix of the message in the condition `DisruptionTarget` once Karpenter's reason is known."""
_REPORTS: Final = re.compile(r"Evicted pod(?:: (?P<why>.+))?|(?P<late>Deleting the pod to accommodate the termination)")
MAX_EVENTS: Final = "50"

Pod = Mapping[str, Any]


def is_planned(pod: Pod) -> bool:
    """Whether the pod was evicted on purpose, because its node is drained, replaced or removed."""
    return is_true(pod, "DisruptionTarget") and condition(pod, "DisruptionTarget").get("reason") == BY_API


def is_unnamed(pod: Pod) -> bool:
    """Whether Karpenter may have reported why the pod ends: the pod was evicted, or is being deleted for an unknown
    reason.
    """
    return is_planned(pod) or ("deletionTimestamp" in pod["metadata"] and not is_true(pod, "DisruptionTarget"))


def named(client: Client, pod: Pod) -> Pod:
    """Returns the pod with Karpenter's reason in its condition; unchanged if Karpenter has reported none."""
    if not is_unnamed(pod):
        return pod
    meta = pod["metadata"]
    fields = f"involvedObject.kind=Pod,involvedObject.name={meta['name']},reason!=Killing"
    try:
        events = client.find("v1", "Event", fieldSelector=fields, limit=MAX_EVENTS)["items"]
    except EngineError:  # without the reason, the pod still counts as evicted
        return pod
    for event in sorted(events, key=event_time, reverse=True):
        found = _REPORTS.match(str(event.get("message") or ""))
        if found and event.get("reason") in ("Evicted", "Disrupted"):
            why = (
                "the terminationGracePeriod of its node was over"
                if found["late"]
                else found["why"] or "no reason given"
            )
            return _with_reason(pod, f"{KARPENTER}{why}")
    return pod


def _with_reason(pod: Pod, message: str) -> Pod:
    status = pod.get("status", {})
    others = [one for one in status.get("conditions", ()) if one["type"] != "DisruptionTarget"]
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": BY_API, "message": message}
    return {**pod, "status": {**status, "conditions": [*others, evicted]}}
