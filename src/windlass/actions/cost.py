"""Says what a run has cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.actions import runs
from windlass.actions.edge import Edge
from windlass.errors import WindlassError
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.runs.cost import Cost
    from windlass.runs.ledger import Ledger
    from windlass.runs.record import Status


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


def _price_now(plan: Mapping[str, Any], edge: Edge) -> dict[str, Any] | None:
    from windlass.actions.targets import find_target
    from windlass.plan.price import price
    from windlass.spec.targets import LocalTarget

    try:
        target = find_target(plan["target"], edge)
    except WindlassError:  # it may be named no longer; the run is as it was
        return None
    if not isinstance(target, LocalTarget):
        return None
    source = f"target {target.name}, priced after the run began"
    return price(target.price_per_hour, target.currency, plan["num_nodes"], source)
