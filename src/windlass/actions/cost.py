"""Computes the cost of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.actions import runs
from windlass.engines import engine_class
from windlass.errors import WindlassError
from windlass.runs.context import Context
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.plan.plan import Plan
    from windlass.plan.price import Price
    from windlass.views.cost import CostReport


def cost(run: str | None, store: Store, context: Context, on: str | None = None) -> tuple[CostReport, Plan]:
    """Returns the cost of a run, and its recorded plan; the cost is null if the target has no price. Raises NoSuchRun.

    Costs use the price in the plan, so they do not change with the price list. If the plan has no price, the target's
    current price is used.
    """
    from windlass.runs.ledger import cost_of, fold_ledger
    from windlass.views.cost import CostReport

    engine, run_id = runs.find(run, store, on, context)
    status, plan = engine.status(run_id), engine.plan_of(run_id)
    if plan is None:
        raise engine.unsupported("cost")
    ledger = fold_ledger(store.events(run_id), context.now(), plan.num_spares)
    found = cost_of(ledger, plan.price or _price_now(plan, context))
    return CostReport(status.id, status.phase, ledger, found, engine.billed(store.run_dir(run_id), found)), plan


def _price_now(plan: Plan, context: Context) -> Price | None:
    from windlass.actions.targets import find_target
    from windlass.plan.price import LISTED_IN, list_price, price

    try:
        target = find_target(plan.target, context)
    except WindlassError:  # the target may have been removed from targets.yaml since the run
        return None
    if target.kind != plan.engine:
        return None
    prices = getattr(target, "prices", {})
    engine = engine_class(target.kind)
    instance = engine.instance_type(plan)
    per_hour = prices.get(instance, getattr(target, "price_per_hour", None))
    source = f"target {target.name}, priced after the run began"
    currency, spares = getattr(target, "currency", "USD"), plan.num_spares
    region = getattr(target, "region", None)
    if per_hour is None and engine.has_list_prices and region is not None:
        from windlass.pricing.refreshed import load

        listed = list_price(instance, region, load(context.home), is_spot=engine.is_spot(plan))
        if listed is not None:
            per_hour, source, currency = listed[0], f"{listed[1]}, priced after the run began", LISTED_IN
    return price(per_hour, currency, plan.num_nodes, source, spares)
