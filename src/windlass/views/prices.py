"""Prices with source and date, and facts about instance types: output of `windlass prices`."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.pricing.instances import InstanceType
from windlass.pricing.price import Price, SpotRange


@dataclass(frozen=True, slots=True)
class InstancePrice:
    """Hardware and price of an EC2 instance type."""

    type: str
    """Instance type as requested, with or without `ml.`."""
    facts: InstanceType
    on_demand: Price | None
    """On-demand price; null if no source has a price."""
    spot: SpotRange | None
    """Spot prices; null before `windlass prices update`."""
    unknown: str
    """Why `on_demand` is null; empty if there is a price."""


@dataclass(frozen=True, slots=True)
class ChargeView:
    """Price of another billed service."""

    name: str
    """Name of the charge, such as `nat.gateway`."""
    what: str
    price: Price | None
    """Price of the charge; null if no source has a price."""
    unknown: str
    """Why `price` is null; empty if there is a price."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices in one region."""

    region: str
    instances: tuple[InstancePrice, ...]
    """Requested instance types; by default, those with an accelerator and a price."""
    charges: tuple[ChargeView, ...]
    """Prices of other services; empty if instance types were requested."""


@dataclass(frozen=True, slots=True)
class RegionUpdated:
    """Prices fetched for one region."""

    region: str
    date: str
    """ISO date of the fetch."""
    num_instances: int
    """Number of instance types with a price."""
    num_charges: int
    """Number of other prices."""
    num_spot: int
    """Number of instance types with a range of spot prices."""
    missing: tuple[str, ...]
    """Names of charges whose price is still unknown."""
    problem: str
    """Why there are no spot prices; empty if there are."""


@dataclass(frozen=True, slots=True)
class PricesUpdated:
    """Result of `prices update`."""

    path: str
    regions: tuple[RegionUpdated, ...]
