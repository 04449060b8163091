"""Computes the EC2 quotas that a cluster's nodes count against, and the vCPUs they need. Pure.

Quotas and their scope: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html; codes: `aws
service-quotas list-service-quotas --service-code ec2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from windlass.pricing.instances import vcpus_of
from windlass.spec.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota in AWS Service Quotas."""

    code: str
    label: str
    """Short name for display, such as `G/VT spot`."""
    name: str
    """Name in Service Quotas."""
    service: str = "ec2"


def _pair(on_demand: str, spot: str, label: str, name: str) -> tuple[Quota, Quota | None]:
    of_spot = Quota(spot, f"{label} spot", f"All {name} Spot Instance Requests") if spot else None
    return Quota(on_demand, label, f"Running On-Demand {name} instances"), of_spot


STANDARD: Final = "Standard (A, C, D, H, I, M, R, T, Z)"
CLASSES: Final[Mapping[str, tuple[Quota, Quota | None]]] = {
    "standard": _pair("L-1216C47A", "L-34B43A08", "standard", STANDARD),
    "g": _pair("L-DB2E81BA", "L-3819A6DF", "G/VT", "G and VT"),
    "p": _pair("L-417A185B", "", "P", "P"),
    "dl": _pair("L-6E869C2A", "L-85EED4F7", "DL", "DL"),
    "trn": _pair("L-2C3B7624", "L-6B0D517C", "Trn", "Trn"),
    "inf": _pair("L-1945791B", "L-B5D1601B", "Inf", "Inf"),
    "f": _pair("L-74FC7D96", "L-88CF9481", "F", "F"),
    "x": _pair("L-7295265B", "L-E3A00192", "X", "X"),
    "u": _pair("L-43DA4232", "", "high memory", "High Memory"),
    "hpc": _pair("L-F7808C92", "", "HPC", "HPC"),
}
"""Quotas for on-demand and for spot instances, by instance class; None if unknown."""
CLASS_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"), "standard"),
    **dict.fromkeys(("g", "gr", "vt"), "g"),
    **{name: name for name in CLASSES if name not in ("standard", "g")},
}
"""Instance class by the letters at the start of the instance family."""
SPOT_OF_P: Final[Mapping[str, Quota]] = {
    **dict.fromkeys("234", Quota("L-7212CCBC", "P2-P4 spot", "All P4, P3 and P2 Spot Instance Requests")),
    "5": Quota("L-C4BD4855", "P5 spot", "All P5 Spot Instance Requests"),
}
"""Spot quota of P instances by generation; quotas of newer generations are unknown."""
ADDRESSES: Final = Quota("L-0263D0A3", "addresses", "EC2-VPC Elastic IPs")
VPCS: Final = Quota("L-F678F1CE", "VPCs", "VPCs per Region", "vpc")


@dataclass(frozen=True, slots=True)
class Demand:
    """Amount of one quota that a cluster needs."""

    quota: Quota
    at_most: int
    """vCPUs of all pools at their maximum."""
    at_least: int
    """Minimum vCPUs with which every pool has a node: its permanent nodes, or one node of its smallest type."""
    pools: tuple[str, ...]
    """Descriptions of the pools: `a10g: 8 × g5.12xlarge`."""


def quota_of(instance_type: str, *, is_spot: bool) -> Quota | None:
    """Returns the quota that an instance type counts against; None if unknown."""
    found = re.match(r"([a-z]+)(\d?)", instance_type)
    if found is None or found[1] not in CLASS_OF:
        return None
    on_demand, spot = CLASSES[CLASS_OF[found[1]]]
    if not is_spot:
        return on_demand
    return SPOT_OF_P.get(found[2]) if found[1] == "p" else spot


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of equal nodes. Capacity blocks are excluded, because they count against no quota of running instances."""

    name: str
    types: tuple[str, ...]
    is_spot: bool
    least: int
    most: int


def pools_of(cluster: Cluster) -> Iterator[Pool]:
    """Yields the pools of a cluster whose nodes count against quotas."""
    system = cluster.system
    yield Pool("system", tuple(system.instances), False, system.min, system.max)
    for one in cluster.gpus:
        if one.capacity != "capacity-block":
            yield Pool(one.name, tuple(one.instances), one.capacity == "spot", one.min, one.max)


def demands(cluster: Cluster) -> tuple[list[Demand], list[str]]:
    """Returns the demand per quota, and the instance types with unknown vCPUs or quota.

    A pool with several types counts with its largest type at the maximum, and with its smallest type at the minimum.
    """
    found: dict[str, Demand] = {}
    unclear: list[str] = []
    for pool in pools_of(cluster):
        by_code: dict[str, tuple[Quota, list[str]]] = {}
        for name in pool.types:
            quota = quota_of(name, is_spot=pool.is_spot)
            if quota is None or not vcpus_of(name):
                unclear.append(name)
            else:
                by_code.setdefault(quota.code, (quota, []))[1].append(name)
        for code, (quota, names) in by_code.items():
            found[code] = _added(found.get(code), _demand(pool, quota, names))
    return list(found.values()), list(dict.fromkeys(unclear))


def _demand(pool: Pool, quota: Quota, names: list[str]) -> Demand:
    sizes = sorted((vcpus_of(name), name) for name in names)
    largest, smallest = sizes[-1], sizes[0]
    shown = f"{pool.name}: {pool.most} × {largest[1]}"
    return Demand(quota, pool.most * largest[0], max(1, pool.least) * smallest[0], (shown,))


def _added(one: Demand | None, other: Demand) -> Demand:
    if one is None:
        return other
    least = one.at_least + other.at_least
    return Demand(one.quota, one.at_most + other.at_most, least, (*one.pools, *other.pools))
