"""Derives the objects of a run from its plan alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.plan.plan import Plan
from windlass.plan.steps import AttemptPartStep, AttemptStep, ClusterStep


def attempt_objects(plan: Plan) -> list[Mapping[str, Any]]:
    """Returns the objects of the first attempt, the owner object of the pods last."""
    return plan.manifests(AttemptPartStep, AttemptStep)


def numbered(plan: Plan, number: int, num_pods: int) -> list[Manifest]:
    """Returns the objects of attempt `number` with `num_pods` pods, derived from the plan alone."""
    way = WORKLOADS[plan.only(ClusterStep).via]
    found = [_numbered(one, plan.run_id, number) for one in attempt_objects(plan)]
    for one in found:
        way.resize(one, num_pods)
    return found


def _numbered(made: Mapping[str, Any], run_id: str, number: int) -> Manifest:
    """Converts a manifest of attempt 1 to the manifest of attempt `number`."""
    first, name = layout.attempt_name(run_id, 1), layout.attempt_name(run_id, number)

    def changed(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: changed(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [changed(one) for one in value]
        if key == layout.ATTEMPT_LABEL:
            return str(number)
        return name if value == first and key == "name" else value

    found: Manifest = changed(made)
    return found
