"""Lists the billed resources of a `cluster.yaml` as items for an estimate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from windlass.pricing.cluster import Item
from windlass.pricing.table import EC2
from windlass.spec.cluster import GIB, Cluster, GpuPool

ZONES: Final = 3
"""Number of availability zones of a cluster whose file lists no zones."""
FREE_MIB_PER_SECOND: Final = 125
"""Throughput of each gp3 volume that is free of charge."""


def items_of(cluster: Cluster, *, disk_mib_per_second: int) -> list[Item]:
    """Returns the billed items of a cluster; `disk_mib_per_second` is the throughput of the disks of GPU nodes."""
    return [
        *_platform(cluster),
        *_system(cluster),
        *_storage(cluster),
        *(item for pool in cluster.gpus for item in _nodes(pool, pool.min, "", disk_mib_per_second)),
        *(item for pool in cluster.gpus for item in _nodes(pool, pool.max, pool.name, disk_mib_per_second)),
    ]


def _platform(cluster: Cluster) -> Iterator[Item]:
    zones = len(cluster.zones) or ZONES
    yield Item("EKS control plane", "eks.control-plane", 1)
    if gateways := cluster.network.num_gateways(zones):
        yield Item(_count(gateways, "NAT gateway"), "nat.gateway", gateways)
        yield Item(_count(gateways, "public IPv4 address", "es"), "ipv4.address", gateways)
        yield Item("data through NAT", "nat.data")
    if services := cluster.endpoint_services:
        yield Item(f"{len(services)} interface endpoints in {zones} zones", "vpc-endpoint.zone", len(services) * zones)
        yield Item("data through interface endpoints", "vpc-endpoint.data")
    if keys := len(cluster.new_keys):
        yield Item(_count(keys, "KMS key"), "kms.key", keys)
    yield Item("logs of the control plane", "logs.ingestion")


def _system(cluster: Cluster) -> Iterator[Item]:
    system = cluster.system
    yield Item(f"{_count(system.min, 'system node')} ({system.instances[0]})", EC2 + system.instances[0], system.min)
    yield Item("disks of system nodes", "ebs.gp3", system.min * system.disk / GIB)


def _storage(cluster: Cluster) -> Iterator[Item]:
    storage = cluster.storage
    if (fsx := storage.fsx) is not None:
        kind = "scratch-2" if fsx.deployment == "scratch-2" else f"persistent-2-{fsx.throughput or 125}"
        yield Item(f"FSx for Lustre, {fsx.size // GIB} GiB", f"fsx.{kind}", fsx.size / GIB)
    if storage.efs is not None:
        yield Item("EFS", "efs.standard")
    if storage.efs is not None and storage.efs.throughput == "elastic":
        yield Item("reads of EFS", "efs.elastic-read")
        yield Item("writes of EFS", "efs.elastic-write")
    yield Item("bucket", "s3.standard")
    yield Item("images in ECR", "ecr.storage")


def _nodes(pool: GpuPool, num_nodes: int, name: str, disk_mib_per_second: int) -> Iterator[Item]:
    """Yields the items for nodes of a pool and their disks, priced by the pool's most expensive instance type.

    AWS or Karpenter chooses among the types by the pods and by capacity.
    """
    if not num_nodes:
        return
    first, *others = pool.instances
    types = f"most expensive of {', '.join(pool.instances)}" if others else first
    nodes = f"{_count(num_nodes, 'node')} of pool {pool.name}"
    if pool.capacity == "capacity-block":
        yield Item(
            f"{nodes} ({types})", "", num_nodes, name, why_unknown="a capacity block is paid for when it is bought"
        )
    else:
        spot = pool.capacity == "spot"
        charges = tuple(EC2 + one for one in others)
        what = f"{nodes} ({types}{', spot' if spot else ''})"
        yield Item(what, EC2 + first, num_nodes, name, is_spot=spot, others=charges)
    yield Item(f"disks of pool {pool.name}", "ebs.gp3", num_nodes * pool.disk / GIB, name)
    if (above := disk_mib_per_second - FREE_MIB_PER_SECOND) > 0:
        yield Item(f"throughput of disks of pool {pool.name}", "ebs.gp3-throughput", num_nodes * above, name)


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"
