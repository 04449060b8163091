"""Reads pods, events and owner objects of the API server into what diagnosis and record need of them. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.observations import PodStatus
from windlass.engines.kubernetes.objects.quantity import (
    Json,
    condition,
    is_on_silent_node,
    is_true,
    seconds_of,
)

MAX_WORDS: Final = 1500
"""Characters of a message of the cluster that are kept: the scheduler names each kind of node that does not fit."""
ON_THE_WAY: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Those that are no problem."""
STUCK: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
"""Those that do not pass by themselves."""
ALTERNATES: Final = {"ImagePullBackOff": "ErrImagePull"}
"""A reason that takes turns with another, as long as nothing changes."""
_BACK_OFF: Final = re.compile(r'Back-off pulling image ".*?": (\w+): (.*)', re.DOTALL)
GONE_SECONDS: Final = 10.0
"""How much longer than its grace a pod may take to end before its node is declared lost."""
TAINTED: Final = "DeletionByTaintManager"
"""Why a pod is deleted whose node has not answered for as long as the pod tolerates."""
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
        reported = status if reason == "TerminationByKubelet" and status.get("reason") else disruption
        return found(state, reported["reason"], reported.get("message", ""))
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


# -- the record -------------------------------------------------------------------------------------------------------


def reason_of(waiting: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message; while a kubelet waits for its next pull, those of the last one."""
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "").strip()
    cause = _BACK_OFF.match(message) if reason in ALTERNATES else None
    return (cause[1], cause[2]) if cause else (reason, message)


# -- whether and why it has ended --------------------------------------------------------------------------------------


def has_ended(pod: Json) -> bool:
    """Whether nothing runs in it any more."""
    return pod_status(0, pod).state == "ended"


def is_alive(pod: Json) -> bool:
    """Whether its container runs and its node reports so."""
    return not is_on_silent_node(pod) and container_state(pod)[0] == "running"


def is_lost(pod: Json) -> bool:
    """Whether a deleted pod is on a node that does not answer: how it ended will never be reported."""
    deleted = pod["metadata"].get("deletionTimestamp")
    if deleted is None or has_ended(pod):
        return False
    is_silent = is_on_silent_node(pod) and container_state(pod)[0] == "running"
    if is_silent and condition(pod, "DisruptionTarget").get("reason") == TAINTED:
        return True  # no kubelet is there to use its grace
    return time.time() > seconds_of(deleted, math.inf) + GONE_SECONDS


def is_forced(pod: Json) -> bool:
    """Whether it was deleted without a grace period: its status stays as it was until a controller lets it go."""
    meta = pod["metadata"]
    return "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0


def ends_at(pod: Json) -> float:
    """When its deadline is over, in Unix seconds of the cluster's clock; infinity where it has none."""
    started, seconds = pod.get("status", {}).get("startTime"), pod["spec"].get("activeDeadlineSeconds")
    return math.inf if seconds is None else seconds_of(started, math.inf) + float(seconds) + GONE_SECONDS


def why_it_ended(pod: Json) -> str:
    """In a line, why a pod whose log has no end has ended."""
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    if is_true(pod, "DisruptionTarget"):
        why = condition(pod, "DisruptionTarget")
        return f"pod {name} was taken away ({why.get('reason', 'disruption')}): {why.get('message', '')}"
    if status.get("reason"):
        return f"pod {name}: {status['reason']}: {status.get('message', '').strip()}"
    state, data = container_state(pod)
    if state == "terminated":
        said = last_words(data)
        return f"pod {name} ended with exit code {data.get('exitCode')} ({data.get('reason', 'Error')}) {said}".strip()
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} was deleted, and its node does not answer" if is_lost(pod) else f"pod {name} was deleted"
    placed = condition(pod, "PodScheduled")
    if placed.get("status") == "False":
        return f"pod {name}: {placed.get('reason')}: {placed.get('message', '')}"
    return f"pod {name} is gone"
