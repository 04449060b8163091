"""Reads the deployments of a namespace from their objects: phases, first causes, end times and leftovers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from windlass.engines.deployments import Deployment, DeploymentPhase
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.optional import items
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.deployment_manifests import (
    APPS,
    KSERVE,
    OBJECTS_ANNOTATION,
    OWNED,
    OWNER_ANNOTATION,
    RUN_ANNOTATION,
    Id,
    deployment_of,
    id_of,
)
from windlass.engines.kubernetes.objects.object_reports import end_of
from windlass.engines.kubernetes.objects.pod_status import STUCK, reason_of
from windlass.engines.kubernetes.objects.quantity import Json, condition, is_true, seconds_of
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading.claims import NOMINATED, SCALED_UP, newest_events
from windlass.engines.kubernetes.reading.diagnose.pod_reasons import explained

LOG_LINES: Final = 10
"""Maximum number of last log lines of a failed container that a cause contains."""
UNFINISHED: Final = "not complete: repeat windlass deploy, or remove it with windlass undeploy"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why pods of a deployment do not become ready."""

    text: str
    """One line."""
    lines: tuple[str, ...] = ()
    """Last log lines of the failed container."""
    fix: str = ""
    is_final: bool = True
    """Whether the deployment fails for this cause without further waiting."""


@dataclass(slots=True)
class DeployedObjects:
    """The objects of one deployment, as the API server returned them."""

    name: str
    owner: Json | None = None
    workload: Json | None = None
    """Its Deployment or InferenceService."""
    service: Json | None = None
    pods: list[Json] = field(default_factory=list)

    @property
    def is_ending(self) -> bool:
        """Whether the cluster removes the objects: their owner is gone, is being deleted, or its deadline has
        passed.
        """
        return self.owner is None or "deletionTimestamp" in self.owner["metadata"] or bool(end_of(self.owner))

    @property
    def wanted(self) -> int:
        """Number of replicas that the workload requests at present. An autoscaler may change it."""
        spec = (self.workload or {}).get("spec", {})
        return int(spec.get("replicas", spec.get("predictor", {}).get("minReplicas", 0)))

    @property
    def ready_pods(self) -> list[Json]:
        """Pods that answer requests."""
        return [pod for pod in self.pods if is_true(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]]

    @property
    def ids(self) -> list[Id]:
        """Ids of the objects that were found, except pods, and of those that the owner names; the owner is first."""
        there = [id_of(one) for one in (self.owner, self.workload, self.service) if one is not None]
        return list(dict.fromkeys((*there[:1], *self.owned, *there)))

    @property
    def owned(self) -> list[Id]:
        """Ids of the objects that the owner lists as its own. The list is untrusted, because any user of the namespace
        may change it: entries of other kinds or names are ignored.
        """
        notes = (self.owner or {}).get("metadata", {}).get("annotations") or {}
        pairs = (one.partition("/") for one in str(notes.get(OBJECTS_ANNOTATION, "")).split(","))
        is_ours = re.compile(rf"{re.escape(self.name)}(-[a-z0-9-]+)?").fullmatch
        return [(OWNED[kind], kind, name) for kind, _, name in pairs if kind in OWNED and is_ours(name)]


def read(client: Client, name: str = "") -> list[DeployedObjects]:
    """Returns the objects of all deployments of the namespace, or those of one, by name. Raises EngineError."""
    selector = f"{layout.DEPLOYMENT_LABEL}={name}" if name else layout.DEPLOYMENT_LABEL
    found: dict[str, DeployedObjects] = {}
    parts = {
        "owner": (BATCH, "Job"),
        "workload": (APPS, "Deployment"),
        "kserve": (KSERVE, "InferenceService"),
        "service": ("v1", "Service"),
        "pods": ("v1", "Pod"),
    }

    def ask(part: str) -> list[Any]:
        api, kind = parts[part]
        list_all = partial(client.find, api, kind, selector)
        objects = items(list_all) if part == "kserve" else list_all()["items"]  # most clusters have no KServe
        return [{"apiVersion": api, "kind": kind, **one} for one in objects or ()]  # items of lists lack both fields

    with ThreadPoolExecutor(len(parts)) as pool:
        answers = dict(zip(parts, pool.map(ask, parts), strict=True))
    for part, objects in answers.items():
        for one in objects:
            its = found.setdefault(deployment_of(one), DeployedObjects(deployment_of(one)))
            if part == "pods":
                its.pods.append(one)
            elif part == "kserve" or one["metadata"]["name"] == its.name:  # KServe's Deployments have the same labels
                setattr(its, "workload" if part == "kserve" else part, one)
    return [found[one] for one in sorted(found)]


def deployment(seen: DeployedObjects, target: str, ahead: float) -> Deployment:
    """Converts the objects of a deployment to its state. The cluster's clock is `ahead` seconds ahead of this
    machine's. Pure.
    """
    owner = seen.owner or {"metadata": {}, "spec": {}}
    notes = owner["metadata"].get("annotations") or {}
    phase, cause = _phase(seen)
    ends_at = ends(owner, ahead)
    created = seconds_of(owner["metadata"].get("creationTimestamp"), math.nan)
    return Deployment(
        name=seen.name,
        target=target,
        phase=phase,
        owner=str(notes.get(OWNER_ANNOTATION, "")),
        run_id=str(notes.get(RUN_ANNOTATION, "")),
        cause=cause,
        created_at=None if math.isnan(created) else created - ahead,
        ends_at=ends_at,
        ends_by="" if ends_at is None else "cluster",
        replicas=seen.wanted,
        ready_replicas=len(seen.ready_pods),
        address=address(seen.service),
        objects=tuple(f"{kind} {name}" for _, kind, name in seen.ids),
    )


def ends(owner: Json, ahead: float) -> float | None:
    """Returns when the cluster removes the owner, in Unix seconds of this machine; None if the owner has no deadline or
    the deadline has not started.
    """
    begun, seconds = owner.get("status", {}).get("startTime"), owner["spec"].get("activeDeadlineSeconds")
    return None if begun is None or seconds is None else seconds_of(begun, math.inf) + float(seconds) - ahead


def address(service: Json | None) -> str:
    """Returns the address of a Service's load balancer; empty if it has none."""
    found = (service or {}).get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    return next((str(one.get("hostname") or one.get("ip") or "") for one in found), "")


def _phase(seen: DeployedObjects) -> tuple[DeploymentPhase, str]:
    if seen.owner is None:
        return DeploymentPhase.DELETING, "its owner is gone, and the cluster has not removed the rest yet"
    if seen.is_ending:
        return DeploymentPhase.DELETING, ""
    if seen.workload is None and not seen.pods:  # The right to list InferenceServices may be missing.
        return DeploymentPhase.CREATING, UNFINISHED
    cause = first_cause(seen)
    text = cause.text if cause is not None else ""
    if seen.ready_pods:
        return DeploymentPhase.READY, text
    return DeploymentPhase.FAILED if cause is not None and cause.is_final else DeploymentPhase.CREATING, text


# -- first causes -----------------------------------------------------------------------------------------------------


def first_cause(seen: DeployedObjects) -> Cause | None:
    """Returns the first cause that the cluster reports for pods that are not ready; None if it reports none. Pure."""
    if is_true(seen.workload or {}, "ReplicaFailure"):
        return _explained("FailedCreate", condition(seen.workload or {}, "ReplicaFailure").get("message", ""), "", seen)
    causes = [cause for pod in seen.pods if (cause := _cause_of(pod, seen)) is not None]
    return min(causes, key=lambda one: not one.is_final, default=None)


def is_provisioned(client: Client, seen: DeployedObjects) -> bool:
    """Whether events of a node autoscaler show that it provisions a node for any of the pods. Raises EngineError."""
    events = newest_events(client.find("v1", "Event")["items"], [pod["metadata"]["name"] for pod in seen.pods])
    return any(event["reason"] in (NOMINATED, SCALED_UP) for event in events.values())


def _cause_of(pod: Json, seen: DeployedObjects) -> Cause | None:
    if is_true(pod, "Ready") or "deletionTimestamp" in pod["metadata"]:
        return None
    status, name = pod.get("status", {}), str(pod["metadata"]["name"])
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = one.get("state", {}).get("terminated") or one.get("lastState", {}).get("terminated") or {}
        if ended.get("exitCode"):
            return _ended(one["name"], ended)
        reason, message = reason_of(one.get("state", {}).get("waiting") or {})
        if reason in STUCK:
            return _explained(reason, message, name, seen)
    placed = condition(pod, "PodScheduled")
    if placed.get("status") == "False":
        found = _explained(placed.get("reason", ""), placed.get("message", ""), name, seen)
        return Cause(found.text, fix=found.fix, is_final=False)
    if status.get("phase") == "Failed":
        return Cause(f"pod {name}: {status.get('reason', 'Failed')}: {status.get('message', '')}".strip(": "))
    return None


def _ended(container: str, ended: Mapping[str, Any]) -> Cause:
    """Returns the cause for a container that has ended with an error. Its termination message has its last log lines,
    or the JSON result of the program that fetches a model.
    """
    lines = tuple(line for line in str(ended.get("message") or "").splitlines() if line.strip())[-LOG_LINES:]
    fix = ""
    if lines[-1:] and (said := _result(lines[-1])):
        lines, fix = (said["error"],), said.get("hint", "")
    what = "the server" if container not in ("fetch", "model") else f"container {container}"
    reason = ended.get("reason")
    why = "exceeded its memory limit" if reason == "OOMKilled" else f"ended with exit code {ended['exitCode']}"
    fix = fix or ("give it more memory: --memory 8GiB" if reason == "OOMKilled" else "")
    return Cause(f"{what} {why}" + (f": {lines[-1].strip()}" if lines else ""), lines, fix)


def _result(line: str) -> dict[str, str]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return {name: str(text) for name, text in found.items()} if isinstance(found, dict) and "error" in found else {}


def _explained(reason: str, message: str, pod: str, seen: DeployedObjects) -> Cause:
    image = next((str(one["spec"]["containers"][0]["image"]) for one in seen.pods), "of the deployment")
    text = ": ".join(part for part in (reason, message.strip()) if part)
    verdict = explained(text, f"pod {pod}" if pod else "the pods", (), 0.0, image=image)
    if verdict is None:
        return Cause(text)
    return Cause(f"{verdict.summary} ({text})" if reason not in verdict.summary else verdict.summary, fix=verdict.fix)
