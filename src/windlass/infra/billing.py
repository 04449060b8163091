"""Prices what an audit has found, by the names that price tables have for its parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.infra.audit.report import Found, PriceKey
from windlass.pricing.price import monthly
from windlass.pricing.table import EC2, Table

CHARGES: Final[Mapping[tuple[str, str], str]] = {
    ("public-ipv4", ""): "ipv4.address",
    ("nat", ""): "nat.gateway",
    ("vpc-endpoint", "interface"): "vpc-endpoint.zone",
    ("eks", "standard"): "eks.control-plane",
    ("elb", "network"): "elb.network",
    ("elb", "application"): "elb.application",
    ("elb", "classic"): "elb.classic",
    ("ebs", "gp2"): "ebs.gp2",
    ("ebs", "gp3"): "ebs.gp3",
    ("ebs", "io2"): "ebs.io2",
    ("ebs-snapshot", "standard"): "ebs.snapshot",
    ("efs", "standard"): "efs.standard",
    ("efs", "ia"): "efs.infrequent-access",
    ("efs", "archive"): "efs.archive",
    ("ecr", ""): "ecr.storage",
    ("logs", ""): "logs.storage",
    ("s3", "standard"): "s3.standard",
    ("kms", "key"): "kms.key",
}
"""The charge of each service and dimension; what is not here has no price in the tables."""
OF_UNIT: Final[Mapping[tuple[str, str, str], str]] = {
    ("ebs", "IOPS-month", "gp3"): "ebs.gp3-iops",
    ("ebs", "MiBps-month", "gp3"): "ebs.gp3-throughput",
}
EXTENDED: Final = ("eks", "extended")


@dataclass(frozen=True, slots=True)
class MonthlyBill:
    """What an object costs in a month of 730 hours, by list prices."""

    usd: float
    dates: tuple[str, ...]
    """ISO dates of the prices, sorted."""

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"usd_per_month": round(self.usd, 2), "dates": list(self.dates)}


def bill(found: Found, region: str, table: Table) -> MonthlyBill | None:
    """The monthly bill of an object; None where one part of it has no price or no known quantity."""
    parts = [_part(key, region, table) for key in found.price_keys]
    if not parts or any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    return MonthlyBill(sum(usd for usd, _ in known), tuple(sorted({date for _, date in known})))


def _part(key: PriceKey, region: str, table: Table) -> tuple[float, str] | None:
    """US dollars a month, and the date of the price."""
    if (key.service, key.dimension) == EXTENDED:
        both = [table.charge(name, region) for name in ("eks.control-plane", "eks.extended-support")]
    elif key.service == "ec2-spot":
        found = table.spot_range(key.dimension, region)
        both = [found.high if found is not None else None]
    else:
        name = charge_of(key)
        both = [table.charge(name, region) if name else None]
    if key.quantity is None or any(price is None for price in both):
        return None
    prices = [price for price in both if price is not None]
    amounts = [monthly(price, key.quantity) for price in prices]
    if any(amount is None for amount in amounts):
        return None
    return sum(amount for amount in amounts if amount is not None), max(price.date for price in prices)


def charge_of(key: PriceKey) -> str:
    """The name of a part's price in the tables; empty where they have none for it."""
    if key.service in ("ec2", "ec2-reservation"):
        return EC2 + key.dimension
    if key.service == "fsx-lustre":
        return f"fsx.{key.dimension.lower().replace('_', '-')}"
    return OF_UNIT.get((key.service, key.unit, key.dimension)) or CHARGES.get((key.service, key.dimension), "")
