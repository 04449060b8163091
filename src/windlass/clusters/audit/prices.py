"""Adds prices to the findings of an audit, by the names used in the price tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from windlass.clusters.audit.report import AuditReport, FoundObject, PriceKey
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
"""Name of the charge for each service and dimension; other combinations have no price in the tables."""
OF_UNIT: Final[Mapping[tuple[str, str, str], str]] = {
    ("ebs", "IOPS-month", "gp3"): "ebs.gp3-iops",
    ("ebs", "MiBps-month", "gp3"): "ebs.gp3-throughput",
}
EXTENDED: Final = ("eks", "extended")


def priced(report: AuditReport, table: Table) -> AuditReport:
    """Returns the report with the price of each object that bills."""
    return replace(report, found=tuple(_priced(one, report.region, table) for one in report.found))


def _priced(found: FoundObject, region: str, table: Table) -> FoundObject:
    usd = bill(found, region, table) if found.bills else None
    return found if usd is None else replace(found, usd_per_month=round(usd, 2))


def bill(found: FoundObject, region: str, table: Table) -> float | None:
    """Returns the list price of an object in US dollars per month of 730 hours; None if a price or a quantity is
    unknown.
    """
    parts = [part for key in found.price_keys for part in _parts(key, region, table)]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _parts(key: PriceKey, region: str, table: Table) -> list[float | None]:
    """Returns the US dollars per month of each charge behind a price key; None for an unknown price."""
    if (key.service, key.dimension) == EXTENDED:
        prices = [table.charge(name, region) for name in ("eks.control-plane", "eks.extended-support")]
    elif key.service == "ec2-spot":
        found = table.spot_range(key.dimension, region)
        prices = [found.high if found is not None else None]
    else:
        name = charge_of(key)
        prices = [table.charge(name, region) if name else None]
    return [None if price is None or key.quantity is None else monthly(price, key.quantity) for price in prices]


def charge_of(key: PriceKey) -> str:
    """Returns the name of the charge for a price key; empty if the price tables do not contain it."""
    if key.service in ("ec2", "ec2-reservation"):
        return EC2 + key.dimension
    if key.service == "fsx-lustre":
        return f"fsx.{key.dimension.lower().replace('_', '-')}"
    return OF_UNIT.get((key.service, key.unit, key.dimension)) or CHARGES.get((key.service, key.dimension), "")
