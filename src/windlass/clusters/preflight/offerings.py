"""Checks in which zones a region offers a cluster's instance types, and whether its pools can have nodes there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from windlass.clusters.aws import Aws, aws_errors
from windlass.clusters.eks.variables import num_adapters
from windlass.clusters.preflight.finding import Finding, unknown
from windlass.clusters.preflight.network import NO_CONTROL_PLANE, subnets_of
from windlass.errors import WindlassError
from windlass.pricing.instances import efa_of
from windlass.spec.cluster import Cluster, GpuPool

NUM_ZONES: Final = 3
Offered = Mapping[str, Collection[str]]
"""Zones that offer each instance type."""


def zones_of(aws: Aws, cluster: Cluster) -> tuple[str, ...]:
    """Returns the zones of the cluster: those in its file, of its subnets, or the first ones that Terraform would use.
    Raises AwsError.
    """
    if cluster.zones:
        return tuple(cluster.zones)
    if subnets := cluster.network.subnets:
        zones = {one["SubnetId"]: str(one["AvailabilityZone"]) for one in subnets_of(aws, "subnet-id", *subnets)}
        return tuple(dict.fromkeys(zones[id] for id in subnets if id in zones))
    filters = [
        {"Name": "state", "Values": ["available"]},
        {"Name": "opt-in-status", "Values": ["opt-in-not-required"]},
    ]
    with aws_errors("list zones", "ec2:DescribeAvailabilityZones"):
        found = aws.client("ec2").describe_availability_zones(Filters=filters)["AvailabilityZones"]
    return tuple(sorted(one["ZoneName"] for one in found if one.get("ZoneId") not in NO_CONTROL_PLANE)[:NUM_ZONES])


def offering_findings(aws: Aws, cluster: Cluster, zones: tuple[str, ...]) -> Iterator[Finding]:
    """Yields a finding per pool: where its instance types are offered, and whether they have the requested adapters."""
    types = sorted({*cluster.system.instances, *(name for pool in cluster.gpus for name in pool.instances)})
    try:
        offered = _offered(aws, types)
    except WindlassError as error:
        yield unknown("offers", error)
        return
    yield _pool("system", tuple(cluster.system.instances), zones, offered, aws.region)
    for pool in cluster.gpus:
        where = zones_of_pool(cluster, pool, zones)
        yield _pool(pool.name, tuple(pool.instances), where, offered, aws.region)
        if pool.efa:
            yield _adapters(pool.name, pool.instances)


def zones_of_pool(cluster: Cluster, pool: GpuPool, zones: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the zones of a pool, as the Terraform configuration chooses them. Pure.

    Node groups use a single zone if their nodes share a placement group (EFA) or FSx for Lustre.
    """
    if pool.zone:
        return (pool.zone,)
    if pool.provision == "node-group" and (num_adapters(pool) or cluster.storage.fsx is not None):
        named = (one.zone for one in sorted(cluster.node_groups, key=lambda one: one.name) if one.zone)
        return (next(named, zones[0]),)
    return zones


def _offered(aws: Aws, types: list[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in types}
    with aws_errors("list where types are offered", "ec2:DescribeInstanceTypeOfferings"):
        pages = (
            aws.client("ec2")
            .get_paginator("describe_instance_type_offerings")
            .paginate(LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": types}])
        )
        for page in pages:
            for one in page["InstanceTypeOfferings"]:
                found.setdefault(one["InstanceType"], set()).add(one["Location"])
    return found


def _pool(name: str, types: tuple[str, ...], zones: tuple[str, ...], offered: Offered, region: str) -> Finding:
    shown, usable, partly = [], 0, False
    for one in types:
        here = [zone for zone in zones if zone in offered[one]]
        elsewhere = sorted(set(offered[one]) - set(zones))
        usable += bool(here)
        partly |= bool(here) and len(here) < len(zones)
        where = f"offered in {', '.join(here)}" if here else f"not offered in {', '.join(zones)}"
        more = f" (also in {', '.join(elsewhere)})" if elsewhere else "" if here else f", nor elsewhere in {region}"
        shown.append(f"{one} {where}{more}")
    text, title = "; ".join(shown), f"offer {name}"
    others = sorted({zone for one in types for zone in offered[one]} - set(zones))
    if not usable and others:
        fix = f"before it is made: name {', '.join(others)} in zones: of cluster.yaml, or in zone: of the pool"
        return Finding(title, "fail", text, fix)
    if not usable:
        command = "aws ec2 describe-instance-type-offerings --filters Name=instance-type,Values="
        fix = f"choose another type or region; to ask another region: {command}{types[0]} --region REGION"
        return Finding(title, "fail", text, fix)
    if usable < len(types):
        return Finding(title, "warn", text, "leave out of instances: what is not offered there")
    fix = "an offering does not guarantee capacity: nodes start only if AWS has free instances" if partly else ""
    return Finding(title, "ok", text, fix)


def _adapters(name: str, types: Collection[str]) -> Finding:
    title = f"efa {name}"
    without = [one for one in types if not efa_of(one)]
    if without:
        return Finding(
            title,
            "fail",
            f"efa: true, and {', '.join(without)} has no Elastic Fabric Adapter",
            "leave out efa:, or choose types that have one, such as p4d.24xlarge",
        )
    return Finding(title, "ok", ", ".join(f"{one} has {efa_of(one)} Elastic Fabric Adapters" for one in types))
