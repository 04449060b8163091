"""Finds the spec of pods inside the objects that pods are made of, whatever kind these are of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def pod_spec(made: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The spec of the pods that these objects are made for, wherever it stands in them; empty where it does not."""
    waiting: list[Any] = list(made)
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, Mapping):
            if "containers" in one:
                return one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return {}
