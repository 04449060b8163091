"""Estimates the costs of a cluster: per month while idle, and per hour of each GPU pool with all its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.pricing.price import Price, hourly, monthly
from windlass.pricing.table import EC2, Table


@dataclass(frozen=True, slots=True)
class Item:
    """A billed resource of a cluster."""

    what: str
    """Name of the resource in output: `2 system nodes`."""
    charge: str
    """Name of the resource's price, such as `nat.gateway` or `ec2.m7i.large`; empty if `why_unknown` is set."""
    quantity: float = 0
    """Number of units: gateways, GiB, nodes. 0 for resources billed by use, whose quantity cannot be predicted."""
    pool: str = ""
    """GPU pool that needs the resource while all its nodes run; empty for resources billed while the cluster is
    idle."""
    is_spot: bool = False
    """Whether the resource is a spot instance."""
    others: tuple[str, ...] = ()
    """Charges that may be billed instead, such as other instance types of the pool; the highest price counts."""
    why_unknown: str = ""
    """Why the resource has no price, if `charge` is empty."""


@dataclass(frozen=True, slots=True)
class Row:
    """An item with its price."""

    what: str
    price: Price | None
    per_hour_usd: float | None
    """Price per hour; None if it is unknown or billed by use."""
    per_month_usd: float | None
    """Price of 730 hours; None if it is unknown or billed by use."""
    is_by_use: bool
    """Whether the resource is billed by use only: without stored or transferred bytes, it costs nothing."""
    unknown: str
    """Why the resource has no price; empty for a resource with a price."""


@dataclass(frozen=True, slots=True)
class PoolCost:
    """Costs of a GPU pool while all its nodes run."""

    name: str
    rows: tuple[Row, ...]
    per_hour_usd: float | None
    """Price per hour; None if a part of it is unknown."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Costs of a cluster by list prices, without discounts, taxes and free tiers."""

    rows: tuple[Row, ...]
    """Resources billed while the cluster is idle, and resources billed by use."""
    base_month_usd: float
    """Sum of the rows with a price, for 730 hours; a lower bound of the monthly costs if `unknown` is not empty."""
    pools: tuple[PoolCost, ...]
    unknown: tuple[str, ...]
    """Resources without a price, in the rows and in the pools."""
    dates: tuple[str, ...]
    """Oldest and newest date of the prices; empty without prices."""


def estimate(items: Sequence[Item], region: str, table: Table) -> Estimate:
    """Prices the resources of a cluster in a region; a price without a source is reported as unknown, never guessed."""
    rows = [(item, _row(item, region, table)) for item in items]
    base = tuple(row for item, row in rows if not item.pool)
    names = dict.fromkeys(item.pool for item in items if item.pool)
    pools = tuple(_pool(name, tuple(row for item, row in rows if item.pool == name)) for name in names)
    dates = sorted(row.price.date for _, row in rows if row.price is not None)
    return Estimate(
        base,
        sum(row.per_month_usd or 0.0 for row in base),
        pools,
        tuple(dict.fromkeys(row.what for _, row in rows if row.unknown)),
        (dates[0], dates[-1]) if dates else (),
    )


def _row(item: Item, region: str, table: Table) -> Row:
    price = _price(item, region, table)
    is_by_use = not item.quantity and not item.why_unknown
    return Row(
        item.what,
        price,
        None if price is None or is_by_use else hourly(price, item.quantity),
        None if price is None or is_by_use else monthly(price, item.quantity),
        is_by_use,
        "" if price is not None else item.why_unknown or _unknown(item, region, table),
    )


def _price(item: Item, region: str, table: Table) -> Price | None:
    """Returns the highest price of an item's charges; None if one of them is unknown."""
    if not item.charge:
        return None
    found = _prices(item, region, table).values()
    return max((one for one in found if one is not None), key=lambda one: one.amount_usd) if all(found) else None


def _prices(item: Item, region: str, table: Table) -> dict[str, Price | None]:
    """Returns the price of each charge; for spot instances the highest price of the range, as an upper bound."""
    if not item.is_spot:
        return {one: table.charge(one, region) for one in (item.charge, *item.others)}
    spot = {one: table.spot_range(one.removeprefix(EC2), region) for one in (item.charge, *item.others)}
    return {one: found.high if found is not None else None for one, found in spot.items()}


def _unknown(item: Item, region: str, table: Table) -> str:
    """Explains why an item has no price: names its first charge without one."""
    charge = next(one for one, price in _prices(item, region, table).items() if price is None)
    return unknown(charge, region, is_spot=item.is_spot)


def unknown(charge: str, region: str, *, is_spot: bool = False) -> str:
    """Explains why a charge has no price in a region, and what to do."""
    if charge.startswith(f"{EC2}ml."):
        return "SageMaker's prices are not listed; put them into the target: prices: {ml.…: …}"
    kind, what = "spot price" if is_spot else "price", charge.removeprefix(EC2)
    return f"no {kind} of {what} in {region} is known; run: windlass prices update --region {region}"


def _pool(name: str, rows: tuple[Row, ...]) -> PoolCost:
    hours = [row.per_hour_usd for row in rows if not row.is_by_use]
    return PoolCost(name, rows, None if None in hours else sum(one or 0.0 for one in hours))
