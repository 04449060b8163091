"""`cost`: what a run has cost, by what its time was spent on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from windlass.cli import options
from windlass.cli.render import print_data
from windlass.cli.style import SPENT_COLOURS
from windlass.cli.words import Paint, bar, duration, money, painter, price, table
from windlass.runs.cost import Cost, cost_to_json
from windlass.runs.ledger import WASTED, Ledger, ledger_to_json
from windlass.runs.record import Status
from windlass.runs.tally import Spent

EXAMPLE_PRICE: Final = "5.672"


@click.command()
@options.run_argument
@options.output
def cost(run: str | None, form: str) -> int:
    """Say what a run has cost until now, by what its time was spent on, and what of it was wasted.

    The price is the target's, in targets.yaml: what a node costs an hour. A run that is queued or has ended holds no
    node and costs nothing.

    \b
    Example:
      windlass cost digits-7f3k2
      windlass cost -o json
    """
    from windlass.actions.cost import cost as find_cost
    from windlass.actions.edge import here

    edge = here()
    with edge.store() as store:
        status, ledger, found = find_cost(run, store, edge)
        plan = store.plan(status.id)
    data = {
        "id": status.id,
        "phase": status.phase.value,
        "ledger": ledger_to_json(ledger),
        "cost": None if found is None else cost_to_json(found),
    }
    print_data(data, form, cost_lines(status, ledger, found, painter(sys.stdout), plan) if form == "table" else "")
    return 0


def how_to_price(target: str, plan: Mapping[str, Any]) -> list[str]:
    """What to write into targets.yaml, so that runs on this target have a price."""
    if plan.get("engine", "local") == "local":
        return [
            f"{target} has no price. Name what a node costs in targets.yaml, and runs are priced by it:",
            f"  {target}: {{kind: local, price_per_hour: 0.526, currency: USD}}",
        ]
    from windlass.actions.cost import instance_type

    head = (
        f"{target} has no price. Add to {target} in targets.yaml what a node costs an hour, and runs are priced by it:"
    )
    if (kind := instance_type(plan)) is not None:
        return [head, f"  prices: {{{kind}: {EXAMPLE_PRICE}}}   for example, and currency: EUR where it is not USD"]
    by_type = f"prices: {{g5.12xlarge: {EXAMPLE_PRICE}}} for jobs that run on one instance type"
    return [head, f"  price_per_hour: {EXAMPLE_PRICE}   for example, or {by_type}"]


def cost_lines(
    status: Status, ledger: Ledger, cost: Cost | None, paint: Paint, plan: Mapping[str, Any] | None = None
) -> list[str]:
    """What `windlass cost` shows; `plan` is the recorded plan's JSON."""
    went_on = "" if status.phase.is_terminal else " so far"
    head = [paint(status.id, bold=True), paint(status.phase.value, SPENT_COLOURS[status.phase.value])]
    if cost is None:
        told = how_to_price(status.target, plan or {})
        return ["  ".join([*head, f"{duration(ledger.wall_seconds)}{went_on}"]), *told]
    width = len(money(cost.total, cost.currency))
    rows = [
        [paint(spent.value, SPENT_COLOURS[spent.value], bold=spent in WASTED), duration(ledger.seconds[spent]),
         money(amount, cost.currency, cost.total).rjust(width), bar(amount / (cost.total or 1.0), 20).rstrip("░")]
        for spent, amount in cost.spent.items()
    ]  # fmt: skip
    lines = ["  ".join([*head, f"{money(cost.total, cost.currency)}{went_on}"]), *(f"  {row}" for row in table(rows))]
    if cost.wasted:
        share = cost.wasted / cost.total
        words = (
            f"{money(cost.wasted, cost.currency, cost.total)} ({share:.0%}) went on time that was redone, hung or idle"
        )
        lines.append(paint(f"  {words}", "yellow"))
    if unobserved := ledger.seconds.get(Spent.UNOBSERVED):
        words = f"{duration(unobserved)} without a supervisor are not priced: whether nodes were held is not known"
        lines.append(paint(f"  {words}", "yellow"))
    return [*lines, paint(f"  {price(cost.per_node_hour, cost.currency)} a node and hour: {cost.source}", dim=True)]
