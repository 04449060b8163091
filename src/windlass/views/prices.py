"""What `windlass prices` prints: prices with source and date, and facts of instance types."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.pricing.instances import InstanceType
from windlass.pricing.price import Price, SpotRange


@dataclass(frozen=True, slots=True)
class InstancePrice:
    """An EC2 instance type: what it has, and what it costs."""

    type: str
    """As it was asked for, `ml.` before it or not."""
    facts: InstanceType
    on_demand: Price | None
    """Null where no source states it."""
    spot: SpotRange | None
    """Null before `windlass prices update`."""
    unknown: str
    """Why `on_demand` is null; empty if there is a price."""


@dataclass(frozen=True, slots=True)
class ChargeView:
    """Something else that is billed."""

    name: str
    """Such as `nat.gateway`."""
    what: str
    price: Price | None
    """Null where no source states it."""
    unknown: str
    """Why `price` is null; empty if there is a price."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices in one region."""

    region: str
    instances: tuple[InstancePrice, ...]
    """The types that were asked for; else those with an accelerator that have a price."""
    charges: tuple[ChargeView, ...]
    """Prices of other services; empty if instance types were requested."""


@dataclass(frozen=True, slots=True)
class RegionUpdated:
    """Prices that were fetched for a region."""

    region: str
    date: str
    """ISO date of the fetch."""
    num_instances: int
    """Instance types with a price."""
    num_charges: int
    """Other prices."""
    num_spot: int
    """Instance types with a range of spot prices."""
    missing: tuple[str, ...]
    """Charges that stay unknown."""
    problem: str
    """Why there are no spot prices; empty where there are."""


@dataclass(frozen=True, slots=True)
class PricesUpdated:
    """What `prices update` has written."""

    path: str
    regions: tuple[RegionUpdated, ...]
