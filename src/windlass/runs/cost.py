"""Prices a ledger: what each phase of a run cost, and what of it was spent on nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.runs.ledger import WASTED, Ledger
from windlass.runs.tally import Spent


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run has cost until its end, or until now."""

    per_node_hour: float
    """Price of one node for one hour."""
    currency: str
    source: str
    """Where the price is from."""
    spent: Mapping[Spent, float]
    """Money by phase, for the nodes that were held in it. They sum to `total`."""

    @property
    def total(self) -> float:
        """What was spent in all."""
        return sum(self.spent.values())

    @property
    def wasted(self) -> float:
        """What was spent on time that was redone, hung or idle."""
        return sum(self.spent.get(spent, 0.0) for spent in WASTED)


def cost_of(ledger: Ledger, price: Mapping[str, Any] | None) -> Cost | None:
    """What the time of `ledger` cost at `price`, the form of a plan's; None where there is no price."""
    if price is None:
        return None
    per_second = price["per_node_hour"] / 3600
    return Cost(
        per_node_hour=price["per_node_hour"],
        currency=price["currency"],
        source=price["source"],
        spent={spent: seconds * per_second for spent, seconds in ledger.node_seconds.items()},
    )


def cost_to_json(cost: Cost) -> dict[str, Any]:
    """The public form of a cost, as `cost -o json` prints it."""
    return {
        "per_node_hour": cost.per_node_hour,
        "currency": cost.currency,
        "source": cost.source,
        "spent": {spent.value: round(money, 6) for spent, money in cost.spent.items()},
        "total": round(cost.total, 6),
        "wasted": round(cost.wasted, 6),
    }
