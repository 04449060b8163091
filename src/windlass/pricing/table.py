"""Looks up prices in the embedded table and in prices fetched by `windlass prices update`; the newer price wins."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from windlass.pricing.price import Price, SpotRange

EC2: Final = "ec2."
"""Prefix of charges named after an instance type."""
ALL_REGIONS: Final = "*"


@dataclass(frozen=True, slots=True)
class Table:
    """Prices by region and name."""

    prices: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    """Prices by region, or `*`, and name: `ec2.g5.12xlarge`, `ebs.gp3`."""
    spot: Mapping[tuple[str, str], SpotRange] = field(default_factory=dict)
    """Spot prices by region and instance type."""

    def charge(self, name: str, region: str) -> Price | None:
        """Returns the price of a charge such as `ebs.gp3`; None if no source has a price.

        Prices for all regions do not apply in China, where AWS bills other amounts in CNY.
        """
        regions = (region,) if region.startswith("cn-") else (region, ALL_REGIONS)
        found = [self.prices[one, name] for one in regions if (one, name) in self.prices]
        return max(found, key=lambda price: price.date, default=None)

    def on_demand(self, instance_type: str, region: str) -> Price | None:
        """Returns the Linux price per hour of an instance type; None if no source has a price, as for `ml.*`."""
        return self.charge(EC2 + instance_type, region)

    def spot_range(self, instance_type: str, region: str) -> SpotRange | None:
        """Returns the spot price range of an instance type; None before `windlass prices update`."""
        return self.spot.get((region, instance_type))

    def instance_types(self, region: str) -> list[str]:
        """Returns the instance types with a price in a region, by name."""
        return sorted(name.removeprefix(EC2) for where, name in self.prices if where == region and name.startswith(EC2))

    def merged(self, other: Table) -> Table:
        """Merges two tables: the newer price wins; for the same date, the price in `other` wins."""
        prices = dict(self.prices)
        for key, price in other.prices.items():
            known = prices.get(key)
            if known is None or price.date >= known.date:
                prices[key] = price
        return Table(prices, {**self.spot, **other.spot})


@cache
def embedded() -> Table:
    """Returns the table that is part of Windlass; `data/SOURCES.md` lists its sources."""
    sources = {row["source"]: row for row in _rows("sources.csv")}
    prices = {}
    for row in _rows("prices.csv"):
        source = sources[row["source"]]
        prices[row["region"], row["name"]] = Price(
            float(row["usd"]), row["unit"], source["text"], source["date"], row["region"]
        )
    return Table(prices)


def _rows(name: str) -> Iterable[dict[str, str]]:
    text = (Path(__file__).parent / "data" / name).read_text("utf-8")
    return csv.DictReader(text.splitlines())
