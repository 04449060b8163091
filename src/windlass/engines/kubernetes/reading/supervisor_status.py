"""Determines why a run in a cluster has no running supervisor, from what the cluster reports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes.access import lease
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.optional import items
from windlass.engines.kubernetes.objects import labels, layout
from windlass.engines.kubernetes.objects.pod_status import (
    MAX_WORDS,
    STUCK,
    container_state,
    pod_status,
    reason_of,
)
from windlass.engines.kubernetes.objects.quantity import condition, event_time, is_on_silent_node, seconds_of
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading import kueue
from windlass.engines.kubernetes.reading.admission import is_suspended

Json = Mapping[str, Any]

QUIET_SECONDS: Final = 20.0
"""Seconds without a new event in the record after which a command checks whether a supervisor still exists."""
SILENT_SECONDS: Final = 25.0
"""Seconds without a renewal of the Lease, due every 10 s, after which its supervisor may no longer act."""
GONE_ON: Final = "{} of {} pods train unsupervised since {}, and nothing is restarted until there is one"
NOTHING: Final = "no pod trains, and none is started until there is one"
SILENT: Final = "which does not answer"
NO_ACCOUNT: Final = f'serviceaccount "{layout.SUPERVISOR_ACCOUNT}" not found'
"""Part of the API server's error for a pod whose service account is missing. If the account of a running pod is
deleted, its token is rejected."""
MOST_EVENTS: Final = "100"
LOG_LINES: Final = 8
NOT_STARTED: Final = ("StartError", "ContainerCannotRun")
"""Termination reasons of a container whose command could not be executed."""


class Absence(NamedTuple):
    """Reason why a run has no acting supervisor."""

    message: str
    """One sentence with the reason that the cluster reports."""
    log: tuple[str, ...] = ()
    """Last lines of the supervisor's log; empty if its container has not ended."""
    since: float | None = None
    """Unix time from which the run had no acting supervisor, or from which pods trained without one; None if
    unknown."""
    is_training: bool = False
    """Whether pods train without a supervisor."""


class Trouble(NamedTuple):
    """Reason why a supervisor's pod does not run."""

    words: str
    log: tuple[str, ...] = ()


def selector(run_id: str) -> str:
    """Returns the label selector for the pods of a run's supervisor."""
    return f"{layout.selector(run_id)},{labels.COMPONENT}={labels.SUPERVISOR}"


def absence(client: Client, run_id: str, now: float, *, may_start: bool = False) -> Absence | None:
    """Returns why a run has no acting supervisor; None if it has one. Raises EngineError. `now` is this machine's time.

    With `may_start`, the pod may just have been requested, so only reasons that the cluster reports count.
    """
    pods = client.find("v1", "Pod", selector(run_id))["items"]
    silent = [pod for pod in pods if is_silent(pod)]
    open_pods = [pod for pod in pods if not is_over(pod) and pod not in silent]
    open_pods.sort(key=lambda pod: not is_running(pod))
    if not may_start and _is_held(client, run_id, pods, now):
        return None
    log: tuple[str, ...] = ()
    if silent:
        what = f"pod {silent[0]['metadata']['name']} is on node {_node_of(silent[0])}, {SILENT}"
        if open_pods:  # the lost node does not affect the replacement pod
            trouble = trouble_of(open_pods[0])
            what += f"; pod {open_pods[0]['metadata']['name']} {trouble.words if trouble else 'is about to take over'}"
    elif open_pods:
        name = open_pods[0]["metadata"]["name"]
        trouble = trouble_of(open_pods[0])
        if trouble is None and may_start:
            return None
        words, log = trouble or Trouble(_state(open_pods[0]))
        what = f"pod {name} {words}"
    else:
        why = _no_pod(client, run_id) or next((word for pod in pods if (word := _end_of(pod))), "")
        if not why and may_start:
            return None
        what = f"Job {layout.supervisor_name(run_id)} has no pod" + (f" ({why})" if why else "")
    if NO_ACCOUNT not in what and _has_no_account(client):
        what += f" ({NO_ACCOUNT})"
    of_ranks = client.find("v1", "Pod", layout.of_attempts(run_id))["items"]
    states = ["lost" if _is_lost(pod) else pod_status(0, pod).state for pod in of_ranks]
    started = [
        seconds_of(container_state(pod)[1].get("startedAt"), now)
        for pod, state in zip(of_ranks, states, strict=True)
        if state == "running"
    ]
    renewed = lease.renewed_at(client, run_id)
    if not started:
        return Absence(f"no supervisor is running: {what}; {NOTHING}", log, renewed or None)
    since = max(min(started), renewed)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    goes_on = GONE_ON.format(len(started), len(states) - states.count("ended"), at)
    return Absence(f"no supervisor is running: {what}; {goes_on}", log, since, is_training=True)


def quiet_since(client: Client, run_id: str, now: float) -> float | None:
    """Returns when a supervisor last renewed the run's Lease, if a renewal is overdue; None otherwise.

    The supervisor's node may be lost, which the cluster reports only after a grace period. Raises EngineError.
    """
    renewed = lease.renewed_at(client, run_id)
    return renewed if renewed and now + client.ahead - renewed > SILENT_SECONDS else None


def acting(client: Client) -> set[str]:
    """Returns the runs of the namespace whose supervisor's pod runs on a responding node. Raises EngineError."""
    pods = client.find("v1", "Pod", f"{labels.COMPONENT}={labels.SUPERVISOR},{layout.RUN_LABEL}")["items"]
    return {pod["metadata"]["labels"][layout.RUN_LABEL] for pod in pods if is_running(pod) and not is_silent(pod)}


def _has_no_account(client: Client) -> bool:
    """Whether the supervisors' service account is known to be missing."""
    with contextlib.suppress(Refused):
        return client.get_if_exists("v1", "ServiceAccount", layout.SUPERVISOR_ACCOUNT) is None
    return False


def _is_held(client: Client, run_id: str, pods: Sequence[Json], now: float) -> bool:
    """Whether a supervisor holds the run's Lease, its pod has not crashed since the last renewal, and its node
    responds.
    """
    holder = lease.fresh_holder(client, run_id, now)
    its = [pod for pod in pods if pod["metadata"]["name"] == lease.host_of(holder)]
    return bool(holder) and not any(_is_crashed(pod) or is_silent(pod) for pod in its)


def has_ended_on(client: Client, run_id: str, host: str) -> bool:
    """Whether this host was a pod of the run's supervisor that, according to the cluster, has ended."""
    if not host.startswith(f"{layout.supervisor_name(run_id)}-"):
        return False
    pods = client.find("v1", "Pod", selector(run_id))["items"]
    return not any(pod["metadata"]["name"] == host and not (is_over(pod) or _is_crashed(pod)) for pod in pods)


# -- pods -------------------------------------------------------------------------------------------------------------


def is_over(pod: Json) -> bool:
    """Whether the pod will not run again. A failed container is restarted in its pod, unless the pod is being deleted.

    The phase of a pod may change some seconds after the end of its container.
    """
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return True
    ended = _container(pod).get("state", {}).get("terminated")
    return ended is not None and (ended.get("exitCode") == 0 or "deletionTimestamp" in pod["metadata"])


def is_running(pod: Json) -> bool:
    """Whether a supervisor runs in this pod, and the pod is not being deleted."""
    return "running" in _container(pod).get("state", {}) and "deletionTimestamp" not in pod["metadata"]


def is_restarting(pod: Json) -> bool:
    """Whether a supervisor has ended in this pod, and will be started again with the same files."""
    found = _container(pod)
    is_waiting = "waiting" in found.get("state", {}) and "terminated" in found.get("lastState", {})
    return is_waiting and "deletionTimestamp" not in pod["metadata"]


def is_silent(pod: Json) -> bool:
    """Whether a supervisor ran in this pod when its node, now unresponsive, last responded."""
    return "running" in _container(pod).get("state", {}) and is_on_silent_node(pod)


def _is_lost(pod: Json) -> bool:
    """Whether a rank's pod is on a node that does not respond, so that the rank's state is unknown."""
    return container_state(pod)[0] == "running" and is_on_silent_node(pod)


def _node_of(pod: Json) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "")


def trouble_of(pod: Json) -> Trouble | None:
    """Returns the reason that the cluster reports for a supervisor's pod that does not run; None if it runs or is
    starting.
    """
    container = _container(pod)
    state = container.get("state", {})
    if "running" in state:
        return None
    if ended := state.get("terminated") or container.get("lastState", {}).get("terminated"):
        return _crash(ended, container.get("restartCount", 0))
    waiting = state.get("waiting") or {}
    if waiting.get("reason") in STUCK:
        return Trouble(f"cannot start: {_reason(waiting)}")
    placed = condition(pod, "PodScheduled")
    if placed.get("status") == "False":
        return Trouble(f"is not scheduled: {_reason(placed)}")
    return None


def _crash(ended: Json, restarts: int) -> Trouble:
    """Returns why a supervisor's container has ended, with the end of its log. The kubelet restarts it with increasing
    delays.
    """
    code, reason = ended.get("exitCode"), ended.get("reason") or ""
    why = f"OOMKilled, exit code {code}" if reason == "OOMKilled" else f"exit code {code}"
    if reason in NOT_STARTED:  # the image may lack the interpreter
        said = str(ended.get("message") or reason).strip().splitlines()[-1]
        why = said.rpartition("unable to start container process: ")[2].removesuffix(": unknown")[:MAX_WORDS]
    times = f", {restarts} restarts so far" if restarts > 1 else ", 1 restart so far" if restarts else ""
    lines = [line for line in str(ended.get("message") or "").splitlines() if line.strip()]
    return Trouble(f"has crashed ({why}{times})", tuple(line[:MAX_WORDS] for line in lines[-LOG_LINES:]))


def _state(pod: Json) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "is being deleted"
    return "has not reported for a while" if is_running(pod) else "is being started"


def _is_crashed(pod: Json) -> bool:
    container = _container(pod)
    return not is_running(pod) and bool(
        container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    )


def _end_of(pod: Json) -> str:
    """Returns why a pod has ended permanently, such as an eviction; empty if no reason is reported."""
    status = pod.get("status", {})
    return f"pod {pod['metadata']['name']}: {_reason(status)}" if status.get("reason") else ""


def _container(pod: Json) -> Json:
    """Returns the status of the supervisor's container, without those of sidecars."""
    statuses: Sequence[Json] = pod.get("status", {}).get("containerStatuses") or ()
    return next((one for one in statuses if one["name"] == labels.SUPERVISOR), {})


def _reason(reported: Json) -> str:
    return ": ".join(part for part in reason_of(reported) if part)[:MAX_WORDS]


# -- the Job ----------------------------------------------------------------------------------------------------------


def _no_pod(client: Client, run_id: str) -> str:
    """Returns why the supervisor's Job has no pod, for example a queue, or a quota that rejects the pod; empty if
    unknown.
    """
    with contextlib.suppress(Refused):
        job = client.get(BATCH, "Job", layout.supervisor_name(run_id))
        if is_suspended(job):
            seen = kueue.read(client, job)
            what = f"queue {seen.queue} has not admitted it" if seen and seen.queue else "it is suspended"
            return ": ".join(part for part in (what, seen.message if seen else "") if part)
    of_job = f"involvedObject.kind=Job,involvedObject.name={layout.supervisor_name(run_id)},type=Warning"
    events = items(lambda: client.find("v1", "Event", fieldSelector=of_job, limit=MOST_EVENTS)) or ()
    newest = max(events, key=event_time, default=None)
    return "" if newest is None else str(newest.get("message") or newest.get("reason") or "").strip()[:MAX_WORDS]
