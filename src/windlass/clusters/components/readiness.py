"""Checks whether the objects of a component are ready, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.clusters.components.component import Component
from windlass.clusters.components.resources import Ref, Resources
from windlass.engines.kubernetes.objects.quantity import condition

Json = Mapping[str, Any]
APIS: Final = {
    "Deployment": "apps/v1",
    "DaemonSet": "apps/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "APIService": "apiregistration.k8s.io/v1",
    "PersistentVolumeClaim": "v1",
    "StorageClass": "storage.k8s.io/v1",
    "NodePool": "karpenter.sh/v1",
    "EC2NodeClass": "karpenter.k8s.aws/v1",
}
CONDITIONS: Final = {
    "CustomResourceDefinition": "Established",
    "APIService": "Available",
    "NodePool": "Ready",
    "EC2NodeClass": "Ready",
}
NAMESPACED: Final = ("Deployment", "DaemonSet", "PersistentVolumeClaim")
MAX_CHARS: Final = 300


def refs(component: Component) -> Iterator[Ref]:
    """Yields references to the objects that must be ready."""
    for one in component.ready:
        namespace = (one.namespace or component.namespace) if one.kind in NAMESPACED else ""
        yield Ref(APIS[one.kind], one.kind, namespace, one.name)


def problems(resources: Resources, component: Component) -> tuple[str, ...]:
    """Returns why a component is not ready, one sentence per object; empty if it is ready. Raises Refused,
    Unreachable.
    """
    found = ((ref, resources.get(ref)) for ref in refs(component))
    return tuple(f"{ref}: {why}" for ref, one in found if (why := _problem(resources, ref, one)))


def of_object(one: Json) -> str:
    """Returns why an object is not ready; empty if it is ready or its kind has no readiness. Pure."""
    kind = str(one["kind"])
    if kind == "Deployment":
        return _deployment(one)
    if kind == "DaemonSet":
        return _daemon_set(one)
    if kind == "PersistentVolumeClaim":
        phase = one.get("status", {}).get("phase", "Pending")
        return "" if phase == "Bound" else f"{phase}, not Bound"
    if kind in CONDITIONS:
        state = condition(one, CONDITIONS[kind])
        if state.get("status") != "True":
            return _said(state) or f"not {CONDITIONS[kind]} yet"
    return ""


def _problem(resources: Resources, ref: Ref, one: Json | None) -> str:
    if one is None:
        return "does not exist"
    why = of_object({"kind": ref.kind, **one})
    if why and ref.kind in ("Deployment", "DaemonSet"):
        why = "; ".join([why, *_pods(resources, ref, one)])
    return why


def _deployment(one: Json) -> str:
    wanted, status = int(one["spec"].get("replicas", 1)), one.get("status", {})
    if status.get("observedGeneration", 0) < one["metadata"].get("generation", 1):
        return "its change was not processed yet"
    updated, available = int(status.get("updatedReplicas", 0)), int(status.get("availableReplicas", 0))
    if min(updated, available) >= wanted:
        return ""
    failed = next((said for kind in ("ReplicaFailure", "Progressing") if (said := _failed(one, kind))), "")
    found = f"{updated} of {wanted} replicas are updated, {available} available"
    return found + (f": {failed}" if failed else "")


def _daemon_set(one: Json) -> str:
    status = one.get("status", {})
    if status.get("observedGeneration", 0) < one["metadata"].get("generation", 1):
        return "its change was not processed yet"
    wanted, ready = int(status.get("desiredNumberScheduled", 0)), int(status.get("numberReady", 0))
    return "" if ready >= wanted else f"ready on {ready} of {wanted} nodes"


def _failed(one: Json, kind: str) -> str:
    """Returns the message of a Deployment condition that reports a failure."""
    state = condition(one, kind)
    is_failure = state.get("status") == ("True" if kind == "ReplicaFailure" else "False")
    return _said(state) if is_failure else ""


def _said(state: Json) -> str:
    return ": ".join(str(state[part]) for part in ("reason", "message") if state.get(part))[:MAX_CHARS]


def _pods(resources: Resources, ref: Ref, one: Json) -> list[str]:
    """Returns why the pods of an object do not run: `pod x: ImagePullBackOff: …`, each reason once."""
    wanted = one["spec"].get("selector", {}).get("matchLabels") or {}
    selector = ",".join(f"{name}={value}" for name, value in wanted.items())
    if not selector:
        return []
    by_reason: dict[str, str] = {}
    for pod in resources.list("v1", "Pod", selector, ref.namespace):
        if reason := _waiting(pod):
            by_reason.setdefault(reason, str(pod["metadata"]["name"]))
    return [f"pod {name}: {reason}" for reason, name in by_reason.items()]


def _waiting(pod: Json) -> str:
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in ("ContainerCreating", "PodInitializing"):
            return _said(waiting)
        if (ended := container.get("state", {}).get("terminated")) and ended.get("exitCode"):
            return f"container {container['name']} ended with exit code {ended['exitCode']}"
    unscheduled = condition(pod, "PodScheduled")
    return _said(unscheduled) if unscheduled.get("status") == "False" else ""
