"""The objects of a plan as files, for those who have something else apply them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windlass.actions.edge import Edge
from windlass.errors import UsageError
from windlass.plan.plan import Plan

if TYPE_CHECKING:
    from windlass.engines.kubernetes.written import Written


def written_objects(plan: Plan, edge: Edge) -> Written:
    """The objects of a plan for a cluster. Raises UsageError for another target, PlanError for one that cannot run."""
    if plan.engine != "kubernetes":
        hint = "windlass plan --on CLUSTER -o manifest; clusters are named in targets.yaml"
        raise UsageError(f"target {plan.target} is no cluster, and only a cluster's runs are made of objects", hint)
    plan.require_runnable()
    from windlass.engines.kubernetes.facts import pack_code, planned_code
    from windlass.engines.kubernetes.written import written

    [sent] = plan.requests("code")
    packed = planned_code(sent["digest"]) or pack_code(Path(sent["folder"]), edge.environ)
    return written(plan, packed.data, edge.now())
