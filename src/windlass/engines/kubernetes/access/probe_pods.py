"""Temporary objects of a command in a cluster, such as the pods of the network check.

An annotation of each object contains the process that created it and its expiry, so that the next command finds and
removes the objects of a killed command. Without a further command, the cluster ends the pods at their expiry.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import manifests
from windlass.engines.kubernetes.objects.labels import HELPER
from windlass.engines.kubernetes.objects.object_reports import is_problem
from windlass.engines.kubernetes.objects.pod_status import STUCK, has_ended, pod_status
from windlass.engines.kubernetes.objects.pods import Pod
from windlass.errors import EngineError
from windlass.worker import process

Manifest = dict[str, Any]

MADE_BY: Final = "windlass.dev/made-by"
KINDS: Final = (("batch/v1", "Job"), ("v1", "ConfigMap"))
"""Kinds of objects of a probe that have no owner."""
PAUSE_SECONDS: Final = 0.3


def made_by(seconds: float) -> dict[str, str]:
    """Returns the annotation of objects that this process creates and uses for at most `seconds`."""
    found = process.stat(os.getpid())
    me = {
        "boot": process.boot_id(),
        "pid": os.getpid(),
        "ticks": found.start_ticks if found else 0,
        "until": time.time() + seconds,
    }
    return {MADE_BY: json.dumps(me)}


def is_left(annotation: str, boot: str, now: float) -> bool:
    """Whether an object is a leftover: the process that created it on this machine has ended, or it has expired."""
    try:
        maker = json.loads(annotation)
        if maker["boot"] == boot and not process.is_same(maker["pid"], maker["ticks"], boot):
            return True
        return bool(now > maker["until"])
    except (ValueError, KeyError, TypeError):
        return True


def sweep(client: Client) -> list[str]:
    """Deletes the objects of killed commands in the namespace; returns their names. Raises EngineError."""
    removed = []
    boot, now = process.boot_id(), time.time()
    for api, kind in KINDS:
        for one in client.find(api, kind, HELPER)["items"]:
            meta = one["metadata"]
            if "ownerReferences" in meta or not is_left(meta.get("annotations", {}).get(MADE_BY, ""), boot, now):
                continue
            if client.delete(api, kind, meta["name"]):
                removed.append(meta["name"])
    return removed


@contextlib.contextmanager
def made(client: Client, seconds: float, *objects: Manifest) -> Iterator[None]:
    """Creates the objects for the `with` block, which uses them for at most `seconds`, and deletes them after it; the
    first object owns the others. Raises EngineError.
    """
    sweep(client)
    first, *others = objects
    meta = first["metadata"]
    first = {**first, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), **made_by(seconds)}}}
    api, kind, name = first["apiVersion"], first["kind"], first["metadata"]["name"]
    try:
        owner = client.create(first)
        for one in others:
            client.create(manifests.owned(one, owner))
        yield
    finally:
        client.delete(api, kind, name)
        for one in others:  # Jobs are deleted at once, without waiting for the garbage collector.
            if one["kind"] == "Job":
                client.delete(one["apiVersion"], "Job", one["metadata"]["name"])


def running(client: Client, name: str, num_pods: int, seconds: float, on_line: Callable[[str], None]) -> list[Pod]:
    """Returns the pods of a probe, in order, once all run. Raises EngineError with the reason if they do not run in
    time.
    """
    give_up = time.monotonic() + seconds
    said = ""
    while True:
        pods = sorted(client.find("v1", "Pod", f"{HELPER}={name}")["items"], key=lambda pod: pod["metadata"]["name"])
        states = [_state(pod) for pod in pods]
        waiting = [state for state in states if state != "running"]
        if len(pods) == num_pods and not waiting:
            return pods
        text = "; ".join(dict.fromkeys(waiting)) or "no pod has been created yet"
        is_stuck = any(word in text for word in STUCK) or any(map(has_ended, pods))
        if is_stuck or time.monotonic() > give_up:
            events = "" if pods else _refusal(client, name)
            raise EngineError(f"its pods do not run: {text}{events}", "windlass check, without --network, shows more")
        if text != said:
            said = text
            on_line(f"waiting for the pods: {text}")
        time.sleep(PAUSE_SECONDS)


def _state(pod: Pod) -> str:
    """Returns `running`, or the reason why the pod does not run."""
    seen = pod_status(0, pod)
    if seen.state == "running":
        return seen.state
    if seen.reason == "Unschedulable":
        return f"no node takes them: {seen.message}"
    if is_problem(seen):
        return f"{seen.reason} {seen.message}".strip()
    return "starting" if seen.machine else "not placed yet"


def _refusal(client: Client, name: str) -> str:
    """Returns the reason why the Job creates no pods, from its events."""
    with contextlib.suppress(Refused):
        for event in client.find("v1", "Event", fieldSelector=f"involvedObject.name={name},type=Warning")["items"]:
            return f": {event.get('message', '')}"
    return ""
