"""Maps the charges of a training cluster to products of AWS's price list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.pricing.price import Price

CHARGES: Final[Mapping[str, str]] = {
    "eks.control-plane": "control plane of a cluster",
    "eks.extended-support": "extended support of a Kubernetes version, besides the control plane",
    "nat.gateway": "NAT gateway",
    "nat.data": "data through a NAT gateway",
    "vpc-endpoint.zone": "interface endpoint, in each zone",
    "vpc-endpoint.data": "data through an interface endpoint",
    "ipv4.address": "public IPv4 address",
    "elb.application": "Application Load Balancer",
    "elb.application-lcu": "capacity unit of an Application Load Balancer",
    "elb.network": "Network Load Balancer",
    "elb.network-lcu": "capacity unit of a Network Load Balancer",
    "elb.classic": "Classic Load Balancer",
    "ebs.gp3": "gp3 volume",
    "ebs.gp3-iops": "gp3 IOPS above 3,000",
    "ebs.gp3-throughput": "gp3 throughput above 125 MiB/s",
    "ebs.gp2": "gp2 volume",
    "ebs.io2": "io2 volume",
    "ebs.snapshot": "EBS snapshot",
    "efs.standard": "EFS, Standard",
    "efs.infrequent-access": "EFS, Infrequent Access",
    "efs.archive": "EFS, Archive",
    "efs.elastic-read": "reads of EFS with elastic throughput",
    "efs.elastic-write": "writes of EFS with elastic throughput",
    "fsx.scratch-2": "FSx for Lustre, scratch",
    "fsx.persistent-2-125": "FSx for Lustre, 125 MB/s for each TiB",
    "fsx.persistent-2-250": "FSx for Lustre, 250 MB/s for each TiB",
    "fsx.persistent-2-500": "FSx for Lustre, 500 MB/s for each TiB",
    "fsx.persistent-2-1000": "FSx for Lustre, 1000 MB/s for each TiB",
    "s3.standard": "S3 Standard, first 50 TB",
    "s3.writes": "PUT, COPY, POST and LIST of S3",
    "s3.reads": "GET of S3",
    "ecr.storage": "images in ECR",
    "logs.ingestion": "log data that CloudWatch takes in",
    "logs.storage": "log data that CloudWatch keeps",
    "kms.key": "KMS key",
}
"""Description of each charge."""

ON_DEMAND: Final = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "licenseModel": "No License required",
    "marketoption": "OnDemand",
}
"""Attributes in the price list that select one price per instance type: Linux, on demand, without licence."""
UNITS: Final = {
    "hrs": "hour", "hours": "hour", "hour": "hour", "lcu-hrs": "hour", "nlcu-hrs": "hour", "lcu-hours": "hour",
    "gb-mo": "GB-month", "gb-month": "GB-month", "iops-mo": "IOPS-month", "gb": "GB", "mibps-mo": "MiBps-month",
    "keys": "month", "key-month": "month", "months": "month", "month": "month",
}  # fmt: skip
"""Maps lower-case units of the price list to the units of this package."""
GIBPS: Final = "gibps-mo"
"""Unit of gp3 throughput in the price list: 1024 MiB/s."""
THOUSAND: Final = "1000 requests"
PREFIX: Final = r"(?:[A-Z0-9]+-|[a-z]{2}(?:-[a-z]+)+-\d-)?"
"""Matches the region prefix of usage types: `USW2-` or `us-west-2-` by service; often empty in us-east-1."""


@dataclass(frozen=True, slots=True)
class Pick:
    """Selects the products of the price list that belong to one charge."""

    name: str
    usage: str
    """Pattern of the attribute `usagetype`, without the region prefix."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Further attributes of the product, such as `productFamily`, with their required values."""
    unit: str = ""
    """Unit of the charge, if the unit of the price list does not determine it."""
    scale: float = 1


@dataclass(frozen=True, slots=True)
class Query:
    """One search in the price list of a region."""

    service: str
    filters: tuple[tuple[str, str], ...]
    picks: tuple[Pick, ...]


def _lustre(name: str, throughput: str) -> Pick:
    return Pick(name, ".+", (("fileSystemType", "Lustre"), ("storageType", "SSD"), ("throughputCapacity", throughput)))


QUERIES: Final[Sequence[Query]] = (
    Query("AmazonEC2", (("productFamily", "Storage"),), (
        Pick("ebs.gp3", r"EBS:VolumeUsage\.gp3"), Pick("ebs.gp2", r"EBS:VolumeUsage\.gp2"),
        Pick("ebs.io2", r"EBS:VolumeUsage\.io2"),
    )),
    Query("AmazonEC2", (("productFamily", "System Operation"),), (Pick("ebs.gp3-iops", r"EBS:VolumeP-IOPS\.gp3"),)),
    Query("AmazonEC2", (("productFamily", "Provisioned Throughput"),), (
        Pick("ebs.gp3-throughput", r"EBS:VolumeP-Throughput\.gp3"),
    )),
    Query("AmazonEC2", (("productFamily", "Storage Snapshot"),), (Pick("ebs.snapshot", r"EBS:SnapshotUsage"),)),
    Query("AmazonEC2", (("productFamily", "NAT Gateway"),), (
        Pick("nat.gateway", r"NatGateway-Hours"), Pick("nat.data", r"NatGateway-Bytes"),
    )),
    Query("AmazonVPC", (), (
        Pick("ipv4.address", r"PublicIPv4:InUseAddress"), Pick("vpc-endpoint.zone", r"VpcEndpoint-Hours"),
        Pick("vpc-endpoint.data", r"VpcEndpoint-Bytes"),
    )),
    Query("AWSELB", (), (
        Pick("elb.application", r"LoadBalancerUsage", (("productFamily", "Load Balancer-Application"),)),
        Pick("elb.application-lcu", r"LCUUsage", (("productFamily", "Load Balancer-Application"),)),
        Pick("elb.network", r"LoadBalancerUsage", (("productFamily", "Load Balancer-Network"),)),
        Pick("elb.network-lcu", r"LCUUsage", (("productFamily", "Load Balancer-Network"),)),
        Pick("elb.classic", r"LoadBalancerUsage", (("productFamily", "Load Balancer"),)),
    )),
    Query("AmazonEFS", (), (
        Pick("efs.standard", r"TimedStorage-ByteHrs"), Pick("efs.infrequent-access", r"IATimedStorage-ByteHrs"),
        Pick("efs.archive", r"ArchiveTimedStorage-ByteHrs"),
        Pick("efs.elastic-read", r"ETDataAccess-Bytes", (("accessType", "Read"),)),
        Pick("efs.elastic-write", r"ETDataAccess-Bytes", (("accessType", "Write"),)),
    )),
    Query("AmazonFSx", (("productFamily", "Storage"), ("fileSystemType", "Lustre")), (
        _lustre("fsx.scratch-2", "N/A"),
        *(_lustre(f"fsx.persistent-2-{throughput}", throughput) for throughput in ("125", "250", "500", "1000")),
    )),
    Query("AmazonEKS", (), (Pick("eks.control-plane", r"AmazonEKS-Hours:perCluster"),)),
    Query("AmazonS3", (("productFamily", "Storage"),), (Pick("s3.standard", r"TimedStorage-ByteHrs"),)),
    Query("AmazonS3", (("productFamily", "API Request"),), (
        Pick("s3.writes", r"Requests-Tier1", unit=THOUSAND, scale=1000),
        Pick("s3.reads", r"Requests-Tier2", unit=THOUSAND, scale=1000),
    )),
    Query("AmazonECR", (), (Pick("ecr.storage", r"TimedStorage-ByteHrs"),)),
    Query("AmazonCloudWatch", (), (
        Pick("logs.ingestion", r"DataProcessing-Bytes"), Pick("logs.storage", r"TimedStorage-ByteHrs"),
    )),
    Query("awskms", (), (Pick("kms.key", r"KMS-Keys", unit="month"),)),
)  # fmt: skip
"""Searches for all charges, except extended support of EKS, whose entry in the price list is unknown."""


def instance_price(product: Mapping[str, Any], region: str, source: str, date: str) -> tuple[str, Price] | None:
    """Returns instance type and price per hour of a product found by `ON_DEMAND`; None without a price in dollars."""
    name = str(product.get("product", {}).get("attributes", {}).get("instanceType", ""))
    found = next(_rates(product), None)
    if not name or found is None or found[1] != "hour" or found[0] <= 0:
        return None
    return name, Price(found[0], "hour", source, date, region)


def charges_of(
    query: Query, product: Mapping[str, Any], region: str, source: str, date: str
) -> Iterator[tuple[str, Price]]:
    """Yields the charges for which this product sets the price."""
    about = product.get("product", {})
    attributes = {**about.get("attributes", {}), "productFamily": about.get("productFamily", "")}
    usage = str(attributes.get("usagetype", ""))
    for pick in query.picks:
        if not re.fullmatch(PREFIX + pick.usage, usage):
            continue
        if any(attributes.get(key) != value for key, value in pick.attributes):
            continue
        found = next(_rates(product), None)
        if found is not None and (unit := pick.unit or found[1]):
            yield pick.name, Price(round(found[0] * pick.scale, 10), unit, source, date, region)


def _rates(product: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    """Yields dollars and unit of the first tier that is not free; the unit is empty if it is unknown to `UNITS`."""
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    tiers = [tier for term in terms for tier in term.get("priceDimensions", {}).values()]
    for tier in sorted(tiers, key=lambda tier: float(tier.get("beginRange") or 0)):
        usd, unit = float(tier.get("pricePerUnit", {}).get("USD", "0") or 0), str(tier.get("unit", "")).lower()
        if usd > 0:
            yield (usd / 1024, UNITS["mibps-mo"]) if unit == GIBPS else (usd, UNITS.get(unit, ""))
