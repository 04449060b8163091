"""Says what a run has cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.actions import runs
from windlass.actions.edge import Edge
from windlass.errors import WindlassError
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.runs.cost import Cost
    from windlass.runs.ledger import Ledger
    from windlass.runs.record import Status

MACHINES: Final = "machines"
"""Kind of the step of a plan that names the pools of nodes that would be provisioned."""
INSTANCE_LABEL: Final = "node.kubernetes.io/instance-type"


def cost(run: str | None, store: Store, edge: Edge) -> tuple[Status, Ledger, Cost | None]:
    """Status, ledger and cost of a run; no cost where its target has no price. Raises NoSuchRun.

    The price is that of the plan, so what a run has cost does not change with the price list; a run whose target had
    no price then is priced by what it has now.
    """
    from windlass.runs.cost import cost_of

    status = runs.status(run, store)
    ledger = runs.ledger(status.id, store, edge.now())
    plan = store.plan(status.id)
    return status, ledger, cost_of(ledger, plan.get("price") or _price_now(plan, edge))


def instance_type(plan: Mapping[str, Any]) -> str | None:
    """The instance type that a recorded plan on a cluster asks for, or the only one that its pools provision."""
    if asked := plan.get("job", {}).get("resources", {}).get("instance"):
        return str(asked)
    pools = [pool for step in plan.get("steps", ()) if step["kind"] == MACHINES for pool in step["request"]["pools"]]
    types = {one for pool in pools for one in pool.get(INSTANCE_LABEL, ())}
    return str(types.pop()) if len(types) == 1 and all(pool.get(INSTANCE_LABEL) for pool in pools) else None


def _price_now(plan: Mapping[str, Any], edge: Edge) -> dict[str, Any] | None:
    from windlass.actions.targets import find_target
    from windlass.plan.price import price
    from windlass.spec.targets import KubernetesTarget, LocalTarget

    try:
        target = find_target(plan["target"], edge)
    except WindlassError:  # it may be named no longer; the run is as it was
        return None
    if not isinstance(target, (LocalTarget, KubernetesTarget)) or target.kind != plan.get("engine", target.kind):
        return None
    per_hour = target.price_per_hour
    if isinstance(target, KubernetesTarget):
        per_hour = target.prices.get(instance_type(plan) or "", per_hour)
    source = f"target {target.name}, priced after the run began"
    return price(per_hour, target.currency, plan["num_nodes"], source)
