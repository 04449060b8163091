"""Turns the outputs of Terraform and the GPU pools into what components are configured with. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Json = Mapping[str, Any]
Capacity = Literal["on-demand", "spot", "capacity-block"]
AMI_ALIASES: Final = {"BOTTLEROCKET": "bottlerocket@latest", "AL2023": "al2023@latest"}
"""Karpenter's names of images, by the beginning of EKS's `ami_type`."""


@dataclass(frozen=True, slots=True)
class Efs:
    """A file system of EFS."""

    file_system_id: str
    access_point_id: str = ""
    """That the claim of the runs mounts; empty where volumes are only made on demand."""


@dataclass(frozen=True, slots=True)
class Fsx:
    """A file system of FSx for Lustre."""

    file_system_id: str
    dns_name: str
    mount_name: str
    size_gib: int


@dataclass(frozen=True, slots=True)
class GpuPool:
    """Nodes with GPUs that Karpenter makes when pods need them."""

    name: str
    instance_types: tuple[str, ...]
    capacity: Capacity = "on-demand"
    capacity_reservation_id: str = ""
    max_nodes: int | None = None
    zone: str = ""
    """Empty for every zone of the cluster."""
    disk_gib: int = 200
    disk_throughput_mibs: int = 600
    """MiB/s of the root volume; at gp3's 125 the pull of an image takes minutes."""
    is_pull_parallel: bool = False
    """Whether nodeadm pulls the layers of an image at the same time, which small types have no processors for."""
    ami_alias: str = AMI_ALIASES["AL2023"]
    labels: Mapping[str, str] = field(default_factory=dict)
    is_tainted: bool = True
    """Whether only pods that tolerate `nvidia.com/gpu` run there."""


@dataclass(frozen=True, slots=True)
class ClusterValues:
    """What is known of a cluster."""

    name: str
    region: str
    vpc_id: str
    namespace: str
    """Where runs live."""
    endpoint: str = ""
    queue_name: str = ""
    """SQS queue of Karpenter: spot interruptions and other events of instances. Empty where there is no Karpenter."""
    instance_profile: str = ""
    """Of Karpenter's nodes. Given by name: Karpenter would make profiles from a role, and leave them behind."""
    private_subnet_ids: tuple[str, ...] = ()
    node_security_group_id: str = ""
    has_load_balancer_controller: bool = False
    efs: Efs | None = None
    fsx: Fsx | None = None
    pools: tuple[GpuPool, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of the instances and volumes that controllers make, so that an audit finds them."""

    @property
    def has_karpenter(self) -> bool:
        """Whether Terraform has made what Karpenter needs."""
        return bool(self.queue_name)


def values_of(
    outputs: Json, pools: Iterable[GpuPool] = (), *, fsx_size_gib: int = 1200, tags: Mapping[str, str] | None = None
) -> ClusterValues:
    """From the values of `terraform output`; an output that is null or missing means that the part does not exist."""
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
        tags={**(tags or {}), "windlass.dev/cluster": name, "windlass.dev/managed-by": "karpenter"},
    )


def gpu_pool(name: str, settings: Json) -> GpuPool:
    """From an entry of the Terraform variable `gpu_pools`."""
    ami_type = str(settings.get("ami_type") or "AL2023")
    alias = next((alias for start, alias in AMI_ALIASES.items() if ami_type.startswith(start)), AMI_ALIASES["AL2023"])
    defaults = GpuPool(name, ())
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
        ami_alias=alias,
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
