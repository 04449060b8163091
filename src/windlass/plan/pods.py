"""Finds the spec of pods inside the objects that pods are made of, whatever kind these are of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def pod_spec(made: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The spec of the pods that these objects are made for, wherever it stands in them; empty where it does not."""
    objects = list(made)
    spec = _below(objects, "containers")
    amounts = _below(objects, "resourcesPerNode").get("resourcesPerNode")
    if amounts is None or not spec:
        return spec
    first, *others = spec["containers"]  # a TrainJob on a runtime of the cluster says them beside its pods
    return {**spec, "containers": [{**first, "resources": amounts}, *others]}


def _below(objects: list[Any], name: str) -> Mapping[str, Any]:
    """The first of these, or of what is in them, that has a field of this name; empty where none has."""
    waiting = list(objects)
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, Mapping):
            if name in one:
                return one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return {}
