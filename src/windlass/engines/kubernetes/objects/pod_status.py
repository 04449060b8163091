"""Converts pods of the API server to the status values that diagnosis and the record use. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.lost_pods import GONE_SECONDS, TAINTED
from windlass.engines.kubernetes.objects.quantity import (
    Json,
    condition,
    is_on_silent_node,
    is_true,
    seconds_of,
)

MAX_WORDS: Final = 1500
"""Most characters kept of a cluster message. The scheduler's messages list a reason for each kind of node that does not
fit."""
STARTING_REASONS: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Waiting reasons of a container that is starting normally."""
STUCK: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
)
"""Waiting reasons that persist until the user changes something."""
ALTERNATES: Final = {"ImagePullBackOff": "ErrImagePull"}
"""Waiting reason of a container, with the reason it alternates with while image pulls fail."""
_BACK_OFF: Final = re.compile(r'Back-off pulling image ".*?": (\w+): (.*)', re.DOTALL)
_TAGGED: Final = re.compile(r"^\[(\d+|n|w|a)\]\+?r? ", re.MULTILINE)
"""Prefix of a log line of a training pod (`worker/pod.py`)."""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """Status of the pod of one node of the attempt. Records store these field names."""

    node: int
    name: str = ""
    """Name of the pod; empty if it was not created yet."""
    state: str = "missing"
    """`missing`, `queued` (not on a node), `pulling` (image and volumes are being prepared), `running`, `ended` or
    `gone`."""
    reason: str = ""
    """Reason why the pod waits or has ended, as the cluster reports it: `Unschedulable`, `ImagePullBackOff`,
    `OOMKilled`."""
    message: str = ""
    """Message of the cluster for `reason`."""
    machine: str = ""
    """Name of the cluster node on which the pod runs."""
    exit_code: int | None = None


def pod_status(node: int, pod: Json | None) -> PodStatus:
    """Returns the status of the pod of a node; `pod` is None if the pod was not created."""
    if pod is None:
        return PodStatus(node)
    status, name = pod.get("status", {}), pod["metadata"]["name"]
    node_name = pod.get("spec", {}).get("nodeName", "")
    where, data = container_state(pod)

    def found(state: str, reason: str = "", message: str = "") -> PodStatus:
        return PodStatus(node, name, state, reason, message.strip()[:MAX_WORDS], node_name, data.get("exitCode"))

    has_ended = where == "terminated" or status.get("phase") in ("Succeeded", "Failed")
    state = "ended" if has_ended else "running" if where == "running" else "pulling" if node_name else "queued"
    # The container's reason is the most specific one, but "Error" means only that its exit code was not 0.
    if where == "terminated" and data.get("reason") not in ("Error", "Completed", "ContainerStatusUnknown", None):
        return found("ended", data["reason"], last_words(data))
    disruption = condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True" and (reason := disruption.get("reason")):
        # If the kubelet ended the pod, the pod's own status has the reason.
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
    if is_deleted and why.get("reason") in (None, *STARTING_REASONS):
        return found(state, "Deleted")
    return found(state, *reason_of(why))


def container_state(pod: Json) -> tuple[str, Json]:
    """Returns the state of the pod's training container (`waiting`, `running` or `terminated`) and its details."""
    one = _container_status(pod)
    # A container that a training runtime restarted counts as ended, since the new one does not train.
    for state, data in (one["lastState"] if is_restarted(pod) else one.get("state", {})).items():
        return state, data or {}
    return "waiting", {}


def exit_code(pod: Json) -> int | None:
    """Returns the exit code of the pod's container; None if it has not ended, or the code is unknown."""
    state, data = container_state(pod)
    code = data.get("exitCode") if state == "terminated" else None
    return code if isinstance(code, int) else None


def ended_at(pod: Json | None) -> float | None:
    """Returns when the pod's container ended, in Unix seconds; None if it has not ended, or the time is unknown."""
    state, data = ("", {}) if pod is None else container_state(pod)
    return seconds_of(data.get("finishedAt"), 0.0) or None if state == "terminated" else None


def is_restarted(pod: Json) -> bool:
    """Whether the pod's container was restarted after it had ended."""
    one = _container_status(pod)
    return one.get("restartCount", 0) > 0 and bool(one.get("lastState"))


def _container_status(pod: Json) -> Json:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    name = layout.container_of(pod) if statuses else ""
    return next((one for one in statuses if one["name"] == name), {})


def sidecars(pod: Json) -> list[str]:
    """Returns the names of running containers other than the training container. Such sidecars, which a webhook may
    inject, keep the pod from ending.
    """
    statuses = pod.get("status", {}).get("containerStatuses", ())
    name = layout.container_of(pod) if statuses else ""
    return [str(one["name"]) for one in statuses if one["name"] != name and "running" in one.get("state", {})]


def last_words(ended: Json) -> str:
    """Returns the termination message of a container, without log lines of ranks, which are in the record already."""
    words = str(ended.get("message") or "")
    if not _TAGGED.search(words):
        return words
    kept = [line.removeprefix("[w] ") for line in words.splitlines() if line.startswith("[w] ")]
    return "\n".join(kept)


# -- why a pod waits --------------------------------------------------------------------------------------------------


def reason_of(waiting: Mapping[str, Any]) -> tuple[str, str]:
    """Returns reason and message of a waiting container; during an image pull back-off, those of the last
    failed pull.
    """
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "").strip()
    cause = _BACK_OFF.match(message) if reason in ALTERNATES else None
    return (cause[1], cause[2]) if cause else (reason, message)


# -- whether and why a pod has ended ----------------------------------------------------------------------------------


def has_ended(pod: Json) -> bool:
    """Whether the containers of the pod have ended."""
    return pod_status(0, pod).state == "ended"


def is_alive(pod: Json) -> bool:
    """Whether the pod's container runs, and its node still reports its status."""
    return not is_on_silent_node(pod) and container_state(pod)[0] == "running"


def is_lost(pod: Json) -> bool:
    """Whether a deleted pod is on a node that does not respond, so that its exit status will never be reported."""
    deleted = pod["metadata"].get("deletionTimestamp")
    if deleted is None or has_ended(pod):
        return False
    is_silent = is_on_silent_node(pod) and container_state(pod)[0] == "running"
    if is_silent and condition(pod, "DisruptionTarget").get("reason") == TAINTED:
        return True  # The kubelet does not respond, so the grace period does not apply.
    return time.time() > seconds_of(deleted, math.inf) + GONE_SECONDS


def is_forced(pod: Json) -> bool:
    """Whether the pod was deleted without a grace period; its status then stays unchanged until a controller removes
    it.
    """
    meta = pod["metadata"]
    return "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0


def ends_at(pod: Json) -> float:
    """Returns when the pod's deadline, plus GONE_SECONDS, expires, in Unix seconds of the cluster's clock; infinity
    without a deadline.
    """
    started, seconds = pod.get("status", {}).get("startTime"), pod["spec"].get("activeDeadlineSeconds")
    return math.inf if seconds is None else seconds_of(started, math.inf) + float(seconds) + GONE_SECONDS


def why_it_ended(pod: Json) -> str:
    """Returns one line on why a pod has ended, for a pod whose log has no final line."""
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
