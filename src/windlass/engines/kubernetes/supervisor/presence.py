"""Finds out why a run in its cluster has no supervisor at present, as the cluster reports it."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from typing import Final

from windlass.engines.kubernetes import labels, layout
from windlass.engines.kubernetes.api import lease
from windlass.engines.kubernetes.api.client import Client, Refused
from windlass.engines.kubernetes.api.optional import items
from windlass.engines.kubernetes.pods.nodes import has_ended
from windlass.engines.kubernetes.pods.status import MAX_WORDS, pod_status
from windlass.engines.kubernetes.quantity import event_time
from windlass.engines.kubernetes.queue import kueue
from windlass.engines.kubernetes.queue.admission import is_suspended
from windlass.engines.kubernetes.workloads import shutdown
from windlass.engines.kubernetes.workloads.job import BATCH

QUIET_SECONDS: Final = 20.0
"""How long nothing may be recorded until it is looked whether there is a supervisor."""
GONE_ON: Final = "the pods train on, and nothing is restarted until there is one"
NOTHING: Final = "no pod trains, and none is started until there is one"
MOST_EVENTS: Final = "100"


def selector(run_id: str) -> str:
    """Selects the pods of the supervisor of a run."""
    return f"{layout.selector(run_id)},{labels.COMPONENT}={labels.SUPERVISOR}"


def absence(client: Client, run_id: str, now: float) -> str:
    """Why no supervisor acts for the run at `now` (Unix seconds); empty where one does. Raises EngineError."""
    try:
        spec = client.get(lease.API, lease.KIND, run_id).get("spec") or {}
    except Refused as error:
        if not error.is_absent(run_id, lease.KIND):
            raise
        spec = {}
    if spec.get("holderIdentity") and abs(now - _renewed_at(spec)) < lease.DURATION_SECONDS + lease.SKEW_SECONDS:
        return ""
    pods = [pod for pod in client.find("v1", "Pod", selector(run_id))["items"] if not has_ended(pod)]
    if pods:
        seen = pod_status(0, pods[0])
        what, why = f"pod {seen.name} is {seen.state}", ": ".join(part for part in (seen.reason, seen.message) if part)
    else:
        what, why = f"Job {layout.supervisor_name(run_id)} has no pod", _no_pod(client, run_id)
    goes_on = GONE_ON if shutdown.live_pods(client, run_id) else NOTHING
    return f"no supervisor is running: {what}" + (f" ({why})" if why else "") + f"; {goes_on}"


def has_ended_on(client: Client, run_id: str, host: str) -> bool:
    """Whether this host was a supervisor's pod of the run, and the cluster reports that it has ended."""
    if not host.startswith(f"{layout.supervisor_name(run_id)}-"):
        return False
    pods = client.find("v1", "Pod", selector(run_id))["items"]
    return not any(pod["metadata"]["name"] == host and not has_ended(pod) for pod in pods)


def _no_pod(client: Client, run_id: str) -> str:
    """Why the Job of the supervisor has no pod, such as a queue, or a quota that refuses it; empty if not known."""
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


def _renewed_at(spec: dict[str, str]) -> float:
    try:
        return datetime.fromisoformat(str(spec.get("renewTime")).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return time.time()
