"""A price with its unit, source and date, and what a quantity of it costs in an hour or a month. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOURS_A_MONTH: Final = 730
"""As AWS's own calculator counts: 8760 hours of a year by 12."""
HOUR, MONTH, PER_MONTH = "hour", "month", "-month"


@dataclass(frozen=True, slots=True)
class Price:
    """What one unit costs, on demand and without discounts, taxes or free tiers."""

    amount_usd: float
    """US dollars for one unit."""
    unit: str
    """`hour`, `month`, `GB-month`, `IOPS-month`, `MiBps-month`, `GB` or `1000 requests`."""
    source: str
    """Where the figure is from."""
    date: str
    """ISO date on which the source states it, such as `2026-02-09`."""
    region: str
    """AWS region, or `*` where the source states one price for all regions."""


@dataclass(frozen=True, slots=True)
class SpotRange:
    """Between which spot prices of Linux have been over a time, in all zones of a region."""

    low: Price
    high: Price
    days: int
    """So many days up to `low.date`."""


def hourly(price: Price, quantity: float = 1) -> float | None:
    """US dollars an hour of `quantity` units; None where the unit has no time, such as `GB` that is transferred."""
    if price.unit == HOUR:
        return price.amount_usd * quantity
    if price.unit == MONTH or price.unit.endswith(PER_MONTH):
        return price.amount_usd * quantity / HOURS_A_MONTH
    return None


def monthly(price: Price, quantity: float = 1) -> float | None:
    """US dollars a month of 730 hours of `quantity` units; None where the unit has no time."""
    an_hour = hourly(price, quantity)
    return None if an_hour is None else an_hour * HOURS_A_MONTH
