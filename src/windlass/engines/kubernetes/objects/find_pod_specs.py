"""Finds the pod specs inside the objects of an attempt, for every workload kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windlass.engines.kubernetes.objects.quantity import Json


def pod_spec(made: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the first pod spec found at any depth in these objects; empty if there is none."""
    objects = list(made)
    spec: Mapping[str, Any] = next(pod_specs(objects), {})
    amounts = next(_below(objects, "resourcesPerNode"), {"resourcesPerNode": None})["resourcesPerNode"]
    if amounts is None or not spec:
        return spec
    # A TrainJob with a runtime of the cluster has the resources outside its pod spec.
    first, *others = spec["containers"]
    return {**spec, "containers": [{**first, "resources": amounts}, *others]}


def pod_specs(made: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Yields all pod specs in these objects: an owner object may have several, such as those of a Launcher and its
    Workers.
    """
    return _below(list(made), "containers")


def running_containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the containers of a pod whose requests add up: its containers, and its native sidecars."""
    yield from spec["containers"]
    yield from (one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always")


def pod_templates(made: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the complete pod templates in an object; a TrainJob with a runtime of the cluster contains none."""
    for one in _below([made], "spec"):
        if "metadata" in one and all(container.get("image") for container in one["spec"].get("containers", ({},))):
            yield one


def _below(objects: list[Any], name: str) -> Iterator[Any]:
    """Yields the mappings, at any depth in these objects, that have a field with this name; the outermost first."""
    waiting = list(objects)
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, Mapping):
            if name in one:
                yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def claims_of(made: Iterable[Json]) -> list[str]:
    """Returns the names of the claims that the pods of these objects mount."""
    volumes = pod_spec(made).get("volumes", ())
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]
