"""`cost`: shows what a run has cost, by activity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from windlass.actions.targets import DEFAULT
from windlass.cli import options
from windlass.cli.formatting import Paint, count, duration, money, price, table
from windlass.cli.render import print_data
from windlass.cli.statustext import spent_row
from windlass.cli.style import phase_word
from windlass.runs.time_accounting import Spent
from windlass.views.cost import CostReport

if TYPE_CHECKING:
    from windlass.plan.plan import Plan

EXAMPLE_PRICE: Final = "5.672"


@click.command()
@options.run_argument
@options.on_cluster
@options.output
def cost(run: str | None, on: str | None, form: str) -> int:
    """Show what a run has cost so far, by activity, and how much of the cost was wasted.

    The price of a node per hour is set in targets.yaml. A run that is queued or has ended uses no node and costs
    nothing.

    \b
    Example:
      windlass cost digits-7f3k2
      windlass cost -o json
    """
    from windlass.actions.cost import cost as find_cost
    from windlass.runs.context import here

    context = here()
    with context.store() as store:
        report, plan = find_cost(run, store, context, on)
    print_data(report, form, lambda paint: cost_lines(report, paint, plan))
    return 0


def how_to_price(plan: Plan) -> list[str]:
    """Returns lines that explain how to set a price for this target in targets.yaml."""
    from windlass.engines import engine_class

    target = plan.target
    if not engine_class(plan.engine).has_prices:
        return [f"{target} is this machine, and has no price"]
    if target == DEFAULT:  # the target `local` may be missing from targets.yaml
        return [
            f"{target} has no price. Set what a node costs an hour in targets.yaml:",
            f"  {target}: {{kind: {target}, price_per_hour: 0.526, currency: USD}}",
        ]
    head = f"{target} has no price. Add to {target} in targets.yaml what a node costs an hour:"
    engine = engine_class(plan.engine)
    if (kind := engine.instance_type(plan)) is not None:
        own = f"  prices: {{{kind}: {EXAMPLE_PRICE}}}   for example, and currency: EUR where it is not USD"
        listed = "  or, on AWS, region: us-east-1   for list prices"
        if engine.is_spot(plan):
            listed += " of spot instances, after: windlass prices update --region us-east-1"
        return [head, own, *([listed] if engine.has_list_prices else [])]
    by_type = f"prices: {{g5.12xlarge: {EXAMPLE_PRICE}}} for jobs that run on one instance type"
    return [head, f"  price_per_hour: {EXAMPLE_PRICE}   for example, or {by_type}"]


def cost_lines(report: CostReport, paint: Paint, plan: Plan) -> list[str]:
    """Returns the output lines of `windlass cost`; `plan` is the recorded plan."""
    cost, ledger = report.cost, report.ledger
    so_far = "" if report.phase.is_terminal else " so far"
    head = f"{paint(report.id, bold=True)}  {phase_word(report.phase, paint)}  "
    if cost is None:
        return [f"{head}{duration(ledger.wall_seconds)}{so_far}", *_billed(report), *how_to_price(plan)]
    total = money(cost.total, cost.currency)
    rows = [
        spent_row(
            spent,
            [duration(ledger.seconds[spent]), money(amount, cost.currency, cost.total).rjust(len(total))],
            amount / (cost.total or 1.0),
            paint,
        )
        for spent, amount in cost.spent.items()
    ]
    lines = [f"{head}{total}{so_far}", *(f"  {row}" for row in table(rows)), *_billed(report)]
    if cost.wasted:
        share = f"{money(cost.wasted, cost.currency, cost.total)} ({cost.wasted / cost.total:.0%})"
        lines.append(paint(f"  {share} was spent on time that was redone, hung or idle", "yellow"))
    if unobserved := ledger.seconds.get(Spent.UNOBSERVED):
        words = f"{duration(unobserved)} without a supervisor are not priced: whether nodes were held is not known"
        lines.append(paint(f"  {words}", "yellow"))
    per_hour = f"  {price(cost.per_node_hour, cost.currency)} per node hour: {cost.source}"
    if spares := plan.num_spares:
        per_hour += f"; {count(spares, 'spare')} counted as {'a node' if spares == 1 else 'nodes'}"
    return [*lines, paint(per_hour, dim=True)]


def _billed(report: CostReport) -> list[str]:
    """Returns lines with the usage that the target reports as billed."""
    billed, cost = report.billed, report.cost
    if billed is None:
        return []
    amount = "" if billed.cost is None or cost is None else f", {money(billed.cost, cost.currency)}"
    saved = 1 - billed.node_seconds / billed.used_node_seconds
    spot = f"; spot capacity saves {saved:.0%}" if saved > 0 else ""
    return [f"  the target bills {duration(billed.node_seconds)} of instances{amount}{spot}"]
