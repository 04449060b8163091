"""What a cluster costs: a month while it stands idle, and an hour of each GPU pool at its maximum. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windlass.pricing.price import Price, hourly, monthly
from windlass.pricing.table import EC2, Table


@dataclass(frozen=True, slots=True)
class Item:
    """Something of a cluster that is billed."""

    what: str
    """As a person calls it: `2 system nodes`."""
    charge: str
    """Name of its price, such as `nat.gateway` or `ec2.m7i.large`; empty for what has none, with `why_unknown`."""
    quantity: float = 0
    """Units of the price: gateways, GiB, nodes. 0 for what is billed by use, which nothing foretells."""
    pool: str = ""
    """The pool whose nodes at most it belongs to; empty for what is billed while the cluster stands idle."""
    is_spot: bool = False
    """Whether spot instances are meant."""
    why_unknown: str = ""
    """Why it has no price, for an item without `charge`."""


@dataclass(frozen=True, slots=True)
class Row:
    """An item with its price."""

    what: str
    price: Price | None
    per_hour_usd: float | None
    """None where it is unknown or billed by use."""
    per_month_usd: float | None
    """Of 730 hours; None where it is unknown or billed by use."""
    is_by_use: bool
    """Whether it is billed by use alone: it costs nothing while nothing is stored or moved."""
    unknown: str
    """Why it has no price; empty where it has one."""


@dataclass(frozen=True, slots=True)
class PoolCost:
    """What a GPU pool costs while all its nodes run."""

    name: str
    rows: tuple[Row, ...]
    per_hour_usd: float | None
    """None where a part of it is unknown."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a cluster costs by list prices, without discounts, taxes and free tiers."""

    rows: tuple[Row, ...]
    """What is billed while it stands idle, and what is billed by use."""
    base_month_usd: float
    """Sum of the rows with a price, of 730 hours: the least that a month costs where `unknown` is not empty."""
    pools: tuple[PoolCost, ...]
    unknown: tuple[str, ...]
    """What has no price, of the rows and of the pools."""
    dates: tuple[str, ...]
    """Oldest and newest date of the prices; empty without any."""


def estimate(items: Sequence[Item], region: str, table: Table) -> Estimate:
    """Price the items of a cluster in a region; what no source states is unknown, and never guessed."""
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
        "" if price is not None else item.why_unknown or unknown(item.charge, region, is_spot=item.is_spot),
    )


def _price(item: Item, region: str, table: Table) -> Price | None:
    """For spot instances the highest price of the range: an estimate that is exceeded helps no budget."""
    if not item.charge:
        return None
    if item.is_spot:
        found = table.spot_range(item.charge.removeprefix(EC2), region)
        return found.high if found is not None else None
    return table.charge(item.charge, region)


def unknown(charge: str, region: str, *, is_spot: bool = False) -> str:
    """Why a charge has no price in a region, and what to do."""
    if charge.startswith(f"{EC2}ml."):
        return "SageMaker's prices are not listed; put them into the target: prices: {ml.…: …}"
    kind, what = "spot price" if is_spot else "price", charge.removeprefix(EC2)
    return f"no {kind} of {what} in {region} is known; run: windlass prices update --region {region}"


def _pool(name: str, rows: tuple[Row, ...]) -> PoolCost:
    hours = [row.per_hour_usd for row in rows if not row.is_by_use]
    return PoolCost(name, rows, None if None in hours else sum(one or 0.0 for one in hours))
