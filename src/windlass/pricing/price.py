"""Prices with unit, source and date, and the cost of a quantity per hour or month."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOURS_A_MONTH: Final = 730
"""Hours of a month in AWS's pricing calculator: 8760 hours of a year divided by 12."""
HOUR, MONTH, PER_MONTH = "hour", "month", "-month"


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one unit, on demand and without discounts, taxes or free tiers."""

    amount_usd: float
    """US dollars per unit."""
    unit: str
    """`hour`, `month`, `GB-month`, `IOPS-month`, `MiBps-month`, `GB` or `1000 requests`."""
    source: str
    """Source of the price."""
    date: str
    """ISO date on which the source was read, such as `2026-02-09`."""
    region: str
    """AWS region, or `*` if the source has one price for all regions."""


@dataclass(frozen=True, slots=True)
class SpotRange:
    """Range of Linux spot prices over a period, in all zones of a region."""

    low: Price
    high: Price
    days: int
    """Length of the period in days, up to `low.date`."""


def hourly(price: Price, quantity: float = 1) -> float | None:
    """Returns US dollars per hour for `quantity` units; None for units without a time, such as transferred `GB`."""
    if price.unit == HOUR:
        return price.amount_usd * quantity
    if price.unit == MONTH or price.unit.endswith(PER_MONTH):
        return price.amount_usd * quantity / HOURS_A_MONTH
    return None


def monthly(price: Price, quantity: float = 1) -> float | None:
    """Returns US dollars per month of 730 hours for `quantity` units; None for units without a time."""
    an_hour = hourly(price, quantity)
    return None if an_hour is None else an_hour * HOURS_A_MONTH
