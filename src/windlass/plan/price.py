"""Price of a plan per hour, computed from the price of one node. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from windlass.worker.values import StrictValue

if TYPE_CHECKING:
    from windlass.pricing.table import Table

LISTED_IN: Final = "USD"
"""Currency of list prices."""


class Price(StrictValue):
    """Price of a run per hour."""

    per_hour: float
    """Price per hour of all nodes and spares."""
    per_node_hour: float
    currency: str
    """ISO 4217 code, such as `USD`."""
    source: str
    """Source of the price."""


def price(per_node_hour: float | None, currency: str, num_nodes: int, source: str, num_spares: int = 0) -> Price | None:
    """Returns the price per hour of `num_nodes` nodes and the spares; None if the price of one node is unknown."""
    if per_node_hour is None:
        return None
    return Price(round(per_node_hour * (num_nodes + num_spares), 6), per_node_hour, currency, source)


def list_price(
    instance_type: str | None, region: str | None, table: Table | None, *, is_spot: bool = False
) -> tuple[float, str] | None:
    """Returns the list price of an instance type per hour in US dollars, and its source.

    For spot instances, returns the highest price of the known range. Returns None for types that are not listed, such
    as `ml.*`.
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
