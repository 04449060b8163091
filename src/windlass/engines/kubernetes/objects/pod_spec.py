"""Finds the pod specs inside the objects of an attempt, whatever kind their owner object is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windlass.engines.kubernetes.objects.quantity import Json


def pod_spec(made: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The spec of the pods of these objects, wherever it stands in them; empty where it does not."""
    objects = list(made)
    spec: Mapping[str, Any] = next(pod_specs(objects), {})
    amounts = next(_below(objects, "resourcesPerNode"), {"resourcesPerNode": None})["resourcesPerNode"]
    if amounts is None or not spec:
        return spec
    first, *others = spec["containers"]  # a TrainJob on a runtime of the cluster has them beside its pods
    return {**spec, "containers": [{**first, "resources": amounts}, *others]}


def pod_specs(made: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """The specs themselves: an owner object may have several, such as those of a Launcher and of its Workers."""
    return _below(list(made), "containers")


def pod_templates(made: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The templates of pods in an object, where they are whole: a TrainJob on a runtime of the cluster has none."""
    for one in _below([made], "spec"):
        if "metadata" in one and all(container.get("image") for container in one["spec"].get("containers", ({},))):
            yield one


def _below(objects: list[Any], name: str) -> Iterator[Any]:
    """Those of these objects, or of what is in them, that have a field of this name; the outermost first."""
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
    """The claims that the pods of these objects mount."""
    volumes = pod_spec(made).get("volumes", ())
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]
