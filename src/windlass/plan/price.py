"""The price of a plan by the hour, from that of one node. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from windlass.worker.values import StrictValue

if TYPE_CHECKING:
    from windlass.pricing.table import Table

LISTED_IN: Final = "USD"
"""The currency of list prices."""


class Price(StrictValue):
    """What a run costs by the hour."""

    per_hour: float
    """Of all nodes and spares."""
    per_node_hour: float
    currency: str
    """`USD`, …"""
    source: str
    """Where the figure is from."""


def price(per_node_hour: float | None, currency: str, num_nodes: int, source: str, num_spares: int = 0) -> Price | None:
    """The price of `num_nodes` nodes and of spares; None where that of one node is not known."""
    if per_node_hour is None:
        return None
    return Price(round(per_node_hour * (num_nodes + num_spares), 6), per_node_hour, currency, source)


def list_price(
    instance_type: str | None, region: str | None, table: Table | None, *, is_spot: bool = False
) -> tuple[float, str] | None:
    """What a node of an instance type costs an hour by the list, in US dollars, and where the figure is from.

    For spot instances the highest price of the known range. None where the list has none, as for `ml.*`.
    """
    if instance_type is None or region is None or table is None:
        return None
    if is_spot:
        found = table.spot_range(instance_type, region)
        if found is None:
            return None
        high = found.high
        words = f"highest spot price of {instance_type} in {region} in {found.days} days, as of {high.date}"
        return high.amount_usd, words
    price = table.on_demand(instance_type, region)
    if price is None:
        return None
    return price.amount_usd, f"list price of {instance_type} in {region}, on demand, as of {price.date}"
