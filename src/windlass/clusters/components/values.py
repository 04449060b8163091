"""Converts Terraform outputs and GPU pools into the configuration of components. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = Mapping[str, Any]
Capacity = Literal["on-demand", "spot", "capacity-block"]
AMI_ALIASES: Final = {"BOTTLEROCKET": "bottlerocket@latest", "AL2023": "al2023@latest"}
"""Karpenter's AMI alias, by the prefix of EKS's `ami_type`."""


@dataclass(frozen=True, slots=True)
class Efs:
    """An EFS file system."""

    file_system_id: str
    access_point_id: str = ""
    """Access point mounted by the claim of the runs; empty if volumes are only created on demand."""


@dataclass(frozen=True, slots=True)
class Fsx:
    """An FSx for Lustre file system."""

    file_system_id: str
    dns_name: str
    mount_name: str
    size_gib: int


@dataclass(frozen=True, slots=True)
class GpuPool:
    """GPU nodes that Karpenter creates for pending pods."""

    name: str
    instance_types: tuple[str, ...]
    capacity: Capacity = "on-demand"
    capacity_reservation_id: str = ""
    max_nodes: int | None = None
    zone: str = ""
    """Availability zone; empty for every zone of the cluster."""
    disk_gib: int = 200
    disk_throughput_mibs: int = 600
    """Throughput of the root volume in MiB/s; with gp3's default of 125, pulling an image takes minutes."""
    is_pull_parallel: bool = False
    """Whether nodeadm unpacks image layers in parallel. Small instance types have too few cores for that."""
    ami_alias: str = AMI_ALIASES["AL2023"]
    ami: str = ""
    """Id of the AMI, or name of the Systems Manager parameter that contains it; empty for the alias."""
    labels: Mapping[str, str] = field(default_factory=dict)
    is_tainted: bool = True
    """Whether only pods that tolerate `nvidia.com/gpu` are scheduled on these nodes."""


@dataclass(frozen=True, slots=True)
class ClusterValues:
    """Facts about a cluster from which its components are configured."""

    name: str
    region: str
    vpc_id: str
    namespace: str
    """Namespace of the runs."""
    endpoint: str = ""
    queue_name: str = ""
    """Karpenter's SQS queue with spot interruptions and other instance events; empty without Karpenter."""
    instance_profile: str = ""
    """Instance profile of Karpenter's nodes, set explicitly because Karpenter would leave its own profiles behind."""
    private_subnet_ids: tuple[str, ...] = ()
    node_security_group_id: str = ""
    has_load_balancer_controller: bool = False
    efs: Efs | None = None
    fsx: Fsx | None = None
    pools: tuple[GpuPool, ...] = ()
    disk_key_arn: str = ""
    """KMS key of the disks of nodes and volumes; empty for the account's default key for EBS."""
    proxy: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the proxy, for nodes and for controllers that call AWS; empty without one."""
    is_isolated: bool = False
    """Whether nodes have no route to the Internet: controllers then call only services with an endpoint in the VPC."""
    image_mirror: str = ""
    """Prefix of the images of components; empty for the registries of their projects."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the instances and volumes that controllers create, for the audit."""

    @property
    def has_karpenter(self) -> bool:
        """Whether Terraform has created the resources that Karpenter needs."""
        return bool(self.queue_name)


def values_of(
    outputs: Json,
    pools: Iterable[GpuPool] = (),
    *,
    fsx_size_gib: int = 1200,
    disk_key_arn: str = "",
    tags: Mapping[str, str] | None = None,
    is_isolated: bool = False,
    image_mirror: str = "",
) -> ClusterValues:
    """Builds the values from `terraform output`; a null or missing output means that the part does not exist."""
    karpenter = outputs.get("karpenter") or {}
    name = str(outputs["name"])
    return ClusterValues(
        name=name,
        region=str(outputs["region"]),
        vpc_id=str(outputs["vpc_id"]),
        namespace=str(outputs.get("namespace") or "default"),
        endpoint=str(outputs.get("endpoint") or ""),
        queue_name=str(karpenter.get("queue_name") or ""),
        instance_profile=str(karpenter.get("instance_profile") or ""),
        private_subnet_ids=tuple(outputs.get("private_subnet_ids") or ()),
        node_security_group_id=str(outputs.get("node_security_group_id") or ""),
        has_load_balancer_controller=bool(outputs.get("load_balancer_controller_role_arn")),
        efs=_efs(outputs),
        fsx=_fsx(outputs, fsx_size_gib),
        pools=tuple(pools),
        disk_key_arn=disk_key_arn,
        proxy=dict(outputs.get("proxy_environment") or {}),
        is_isolated=is_isolated,
        image_mirror=image_mirror,
        tags={**(tags or {}), "windlass.dev/cluster": name, "windlass.dev/managed-by": "karpenter"},
    )


def gpu_pool(name: str, settings: Json) -> GpuPool:
    """Builds a GpuPool from an entry of the Terraform variable `gpu_pools`."""
    ami_type = str(settings.get("ami_type") or "AL2023")
    alias = next((alias for start, alias in AMI_ALIASES.items() if ami_type.startswith(start)), AMI_ALIASES["AL2023"])
    ami, defaults = str(settings.get("ami") or ""), GpuPool(name, ())
    return GpuPool(
        name=name,
        instance_types=tuple(settings["instance_types"]),
        capacity=settings.get("capacity") or "on-demand",
        capacity_reservation_id=str(settings.get("capacity_reservation_id") or ""),
        max_nodes=settings.get("max"),
        zone=str(settings.get("zone") or ""),
        disk_gib=int(settings.get("disk_gib") or defaults.disk_gib),
        disk_throughput_mibs=int(settings.get("disk_throughput_mibs") or defaults.disk_throughput_mibs),
        is_pull_parallel=bool(settings.get("parallel_pull")),
        ami_alias=ami if "@" in ami else alias,
        ami="" if "@" in ami else ami,
        labels=dict(settings.get("labels") or {}),
        is_tainted=bool(settings.get("taint", True)),
    )


def _efs(outputs: Json) -> Efs | None:
    found = outputs.get("efs_id")
    return Efs(str(found), str(outputs.get("efs_access_point_id") or "")) if found else None


def _fsx(outputs: Json, size_gib: int) -> Fsx | None:
    found = outputs.get("fsx_id")
    if not found:
        return None
    return Fsx(str(found), str(outputs["fsx_dns_name"]), str(outputs["fsx_mount_name"]), size_gib)
