"""Compares what pods need with what a cluster has: nodes that fit, and objects that the pods refer to.

Only the scheduler decides where a pod runs. These notes report what is certain: no node has a label or so much of a
resource, or each node that would fit has a taint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.objects.find_pod_specs import running_containers
from windlass.engines.kubernetes.objects.node_pools import taint_not_tolerated, taint_text, taints_of_node
from windlass.engines.kubernetes.objects.pod_template import GPU
from windlass.engines.kubernetes.objects.quantity import Json, is_true, quantity_text
from windlass.engines.kubernetes.reading.preflight.refusals import Author
from windlass.plan.notes import Note, blocker
from windlass.spec.quantities import amount

MOST_NODES: Final = "500"
"""Maximum number of nodes that are read; in larger clusters, pods are not compared with nodes."""
OF_NODES: Final = "node.kubernetes.io/"
"""Prefix of taints that describe a temporary condition of a node, which pods should not tolerate."""
REPORTED_BY_ALL: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources of every node; a node that does not report one of the others has none of it."""
DEFAULT_SCHEDULER: Final = "default-scheduler"


def read_nodes(client: Client) -> list[Json]:
    """Returns the ready nodes; none if the login may not list them, or if there are too many."""
    try:
        found = client.find("v1", "Node", limit=MOST_NODES)
    except (Refused, Unreachable):
        return []
    return [] if found["metadata"].get("continue") else ready(found["items"])


def ready(nodes: Sequence[Json]) -> list[Json]:
    """Returns the nodes that are ready."""
    return [one for one in nodes if is_true(one, "Ready")]


def node_notes(what: str, spec: Json, nodes: Sequence[Json], author: Author) -> Iterator[Note]:
    """Yields reasons why no node of a cluster can run a pod with this spec; none without nodes. Pure."""
    wanted = spec.get("nodeSelector") or {}
    chosen = [one for one in nodes if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
    if nodes and not chosen:
        text = ", ".join(f"{name}={value}" for name, value in wanted.items())
        yield Note("node-labels-missing", f"{what}: no node has the labels {text}", "kubectl get nodes --show-labels")
    needs = _requests(spec)
    fitting = [one for one in chosen if not list(_lacking(needs, [one]))]
    for name, most in _lacking(needs, chosen):
        has = f"the largest node has {quantity_text(name, most)}" if most else f"none of {len(chosen)} nodes has any"
        yield Note(
            "resource-missing",
            f"{what}: {quantity_text(name, needs[name])} {name} requested, and {has}",
            "request less, or wait for an autoscaler that makes such nodes; kubectl describe nodes",
        )
    kept = [taint_not_tolerated(taints_of_node(one), spec) for one in fitting]
    if fitting and all(kept):
        texts = dict.fromkeys(taint_text(one) for one in kept if one and not one["key"].startswith(OF_NODES))
        option = author.line("pods", f"tolerations: [{next(iter(texts), '')}]")
        option += f"; ranks that request GPUs tolerate {GPU}" if any(one.startswith(GPU) for one in texts) else ""
        yield Note(
            "taint-not-tolerated",
            f"{what}: each of {len(fitting)} nodes that fit has a taint that they do not tolerate: "
            f"{', '.join(texts) or 'a temporary one'}",
            option if texts else "kubectl get nodes",
        )


def _requests(spec: Json) -> dict[str, float]:
    """Returns what the containers of a pod request together, by resource."""
    total: dict[str, float] = {}
    for container in running_containers(spec):
        resources = container.get("resources") or {}
        for name, value in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] = total.get(name, 0.0) + amount(value)
    return total


def _lacking(needs: Mapping[str, float], nodes: Sequence[Json]) -> Iterator[tuple[str, float]]:
    """Yields resources of which no node has enough, each with the most that one has."""
    has = [one.get("status", {}).get("allocatable") or {} for one in nodes]
    for name, need in needs.items():
        is_known = name not in REPORTED_BY_ALL or any(name in one for one in has)
        most = max((amount(one.get(name, "0")) for one in has), default=need)
        if is_known and most < need:
            yield name, most


# -- objects that pods refer to ----------------------------------------------------------------------------------------


def reference_notes(
    client: Client, what: str, spec: Json, run_id: str, made: Collection[tuple[str, str]]
) -> Iterator[Note]:
    """Yields objects that a pod refers to and that are not in the namespace, except those of its run and those in
    `made` (kind and name).

    What the login may not read yields none.
    """
    for kind, name, key in dict.fromkeys(_references(spec)):
        if (kind, name) in made or f"{name}-".startswith(f"{run_id}-"):
            continue
        try:
            found = client.get_if_exists("v1", kind, name)
        except (Refused, Unreachable):
            continue
        if found is None:
            fix = f"{client.kubectl} -n {client.namespace} get {kind.lower()}s"
            yield blocker("object-missing", f"{what}: {kind} {name} is not in the namespace", fix)
        elif key and key not in {**found.get("data", {}), **found.get("binaryData", {})}:
            has = ", ".join(sorted(found.get("data", {}))) or "none"
            yield blocker("object-missing", f"{what}: {kind} {name} has no key {key}", f"its keys: {has}")
    name = spec.get("schedulerName", DEFAULT_SCHEDULER)
    if name != DEFAULT_SCHEDULER and not _has_scheduled(client, name):
        yield Note(
            "scheduler-unseen",
            f"{what}: no pod of the namespace was scheduled by {name}: without this scheduler, pods stay pending",
            f"{client.kubectl} get pods -A --field-selector spec.schedulerName={name}",
        )


def _has_scheduled(client: Client, name: str) -> bool:
    """Whether the namespace has a pod of this scheduler; true if the login may not list pods."""
    try:
        return bool(client.find("v1", "Pod", fieldSelector=f"spec.schedulerName={name}", limit="1")["items"])
    except (Refused, Unreachable):
        return True


def _references(spec: Json) -> Iterator[tuple[str, str, str]]:
    """Yields kind, name and key (empty for the whole object) of the objects that the containers of a pod need."""
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for one in container.get("envFrom", ()):
            yield from _of_source(one, ("configMapRef", "secretRef"), "name")
        for one in container.get("env", ()):
            yield from _of_source(one.get("valueFrom", {}), ("configMapKeyRef", "secretKeyRef"), "name")
    for volume in spec.get("volumes", ()):
        yield from _of_source(volume, ("configMap",), "name")
        yield from _of_source(volume, ("secret",), "secretName")
        for source in volume.get("projected", {}).get("sources", ()):
            yield from _of_source(source, ("configMap", "secret"), "name")
        if claim := volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", claim["claimName"], ""


def _of_source(source: Mapping[str, Any], fields: Sequence[str], name: str) -> Iterator[tuple[str, str, str]]:
    for field in fields:
        if (found := source.get(field)) and not found.get("optional"):
            keys = [one["key"] for one in found.get("items", ())] or [found.get("key", "")]
            yield from (("Secret" if field.startswith("secret") else "ConfigMap", found[name], key) for key in keys)
