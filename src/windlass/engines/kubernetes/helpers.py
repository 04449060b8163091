"""Objects that a command makes in a cluster for a while, such as the pods that try the network.

Each says which process made it, and until when it may be of use, so that the next command finds and removes what one
has left that was killed. The cluster itself ends them at that time, even if no command ever comes again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from windlass.engines.kubernetes import layout, manifests
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.seeing import container_state
from windlass.engines.kubernetes.ways.job import BATCH
from windlass.errors import EngineError
from windlass.worker import process

Manifest = dict[str, Any]
Pod = Mapping[str, Any]

LABEL: Final = "windlass.dev/helper"
CONTAINER: Final = "node"
MADE_BY: Final = "windlass.dev/made-by"
KINDS: Final = (("batch/v1", "Job"), ("v1", "ConfigMap"))
"""What a helper is made of that nothing else owns."""
PAUSE_SECONDS: Final = 0.3
STUCK: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
                "CreateContainerError", "RunContainerError", "CrashLoopBackOff")  # fmt: skip
"""Reasons for which a container waits that do not go away by waiting."""


def labels(name: str) -> dict[str, str]:
    """What ties the objects of a helper together."""
    return {layout.MANAGED_LABEL: "windlass", LABEL: name}


def made_by(seconds: float) -> dict[str, str]:
    """The annotation of what this process makes, to be of use for so many seconds."""
    found = process.stat(os.getpid())
    me = {"boot": process.boot_id(), "pid": os.getpid(), "ticks": found.start_ticks if found else 0,
          "until": time.time() + seconds}  # fmt: skip
    return {MADE_BY: json.dumps(me)}


def is_left(annotation: str, boot: str, now: float) -> bool:
    """Whether whoever made an object is gone, as far as this machine can tell, or its time is over."""
    try:
        maker = json.loads(annotation)
        if maker["boot"] == boot and not process.is_same(maker["pid"], maker["ticks"], boot):
            return True
        return bool(now > maker["until"])
    except (ValueError, KeyError, TypeError):
        return True


def sweep(client: Client) -> list[str]:
    """Remove what killed commands have left in the namespace; gives the names. Raises EngineError."""
    removed = []
    boot, now = process.boot_id(), time.time()
    for api, kind in KINDS:
        for one in client.find(api, kind, LABEL)["items"]:
            meta = one["metadata"]
            if "ownerReferences" in meta or not is_left(meta.get("annotations", {}).get(MADE_BY, ""), boot, now):
                continue
            if client.delete(api, kind, meta["name"]):
                removed.append(meta["name"])
    return removed


def job(name: str, seconds: int, num_pods: int, spec: Manifest, *, namespace: str) -> Manifest:
    """A Job whose pods the cluster ends, and removes, by itself after so many seconds. `spec` is that of its pods."""
    meta = {"name": name, "namespace": namespace, "labels": labels(name), "annotations": made_by(seconds)}
    return {
        "apiVersion": BATCH,
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "completionMode": "Indexed",
            "completions": num_pods,
            "parallelism": num_pods,
            "backoffLimit": 0,
            "activeDeadlineSeconds": seconds,
            "ttlSecondsAfterFinished": 60,
            "template": {"metadata": {"labels": labels(name)}, "spec": spec},
        },
    }


def pod_spec(image: str, user: int, command: list[str]) -> Manifest:
    """A pod of the strictest kind that runs a program and ends at once when told to."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "command": command,
                "env": [{"name": "HOME", "value": "/tmp"}],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                # A namespace with a quota refuses pods that do not say how much they take.
                "resources": {
                    "requests": {"cpu": "100m", "memory": "128Mi"},
                    "limits": {"cpu": "2", "memory": "2Gi"},
                },
            }
        ],
    }


@contextlib.contextmanager
def made(client: Client, *objects: Manifest) -> Iterator[None]:
    """The objects are there in the block and gone after it; the first owns the others. Raises EngineError."""
    sweep(client)
    first, *others = objects
    api, kind, name = first["apiVersion"], first["kind"], first["metadata"]["name"]
    try:
        owner = client.create(first)
        for one in others:
            client.create(manifests.owned(one, owner))
        yield
    finally:
        client.delete(api, kind, name)
        for one in others:  # at once, and not when somebody collects what has no owner
            if one["kind"] == "Job":
                client.delete(one["apiVersion"], "Job", one["metadata"]["name"])


def running(client: Client, name: str, num_pods: int, seconds: float, told: Callable[[str], None]) -> list[Pod]:
    """The pods of a helper, in order, once all run. Raises EngineError where they do not in time, and says why."""
    give_up = time.monotonic() + seconds
    said = ""
    while True:
        pods = sorted(client.find("v1", "Pod", f"{LABEL}={name}")["items"], key=lambda pod: pod["metadata"]["name"])
        states = [_state(pod) for pod in pods]
        waiting = [state for state in states if state != "running"]
        if len(pods) == num_pods and not waiting:
            return pods
        text = "; ".join(dict.fromkeys(waiting)) or "no pod has been made yet"
        is_stuck = any(word in text for word in STUCK) or any(_has_ended(pod) for pod in pods)
        if is_stuck or time.monotonic() > give_up:
            events = "" if pods else _refusal(client, name)
            raise EngineError(f"its pods do not run: {text}{events}", "windlass check, without --network, says more")
        if text != said:
            said = text
            told(f"waiting for the pods: {text}")
        time.sleep(PAUSE_SECONDS)


def _has_ended(pod: Pod) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _state(pod: Pod) -> str:
    """`running`, or why not."""
    state, data = container_state(pod)
    if state == "running":
        return state
    status = pod.get("status", {})
    if data.get("reason") and data["reason"] != "ContainerCreating":
        return f"{data['reason']} {data.get('message', '')}".strip()
    for condition in status.get("conditions", ()):
        if condition["status"] == "False" and condition.get("reason") == "Unschedulable":
            return f"no node takes them: {condition.get('message', '')}"
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}"
    return "starting" if status.get("phase") == "Pending" and pod["spec"].get("nodeName") else "not placed yet"


def _refusal(client: Client, name: str) -> str:
    """Why the Job makes no pods, as its events tell."""
    with contextlib.suppress(Refused):
        events = client.find("v1", "Event", fieldSelector=f"involvedObject.name={name}")["items"]
        for event in events:
            if event.get("type") == "Warning":
                return f": {event.get('message', '')}"
    return ""
