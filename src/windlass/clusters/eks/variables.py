"""Translates `cluster.yaml` into the input variables of the Terraform configuration (`terraform.tfvars.json`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from windlass.pricing.instances import cores_of, efa_of
from windlass.spec.cluster import GIB, Cluster, GpuPool

DISK_MIB_PER_SECOND: Final = 600
"""Disk throughput of GPU nodes in MiB/s: with gp3's default of 125, unpacking an image of 10 GB takes minutes."""
PARALLEL_PULL_CORES: Final = 16
"""Minimum number of processor cores for nodes that unpack image layers in parallel."""
AMI: Final = {"nvidia": "AL2023_x86_64_NVIDIA", "arm-nvidia": "AL2023_ARM_64_NVIDIA", "neuron": "AL2023_x86_64_NEURON"}
NEURON: Final = ("trn", "inf")
ARM: Final = ("g5g.", "p6e-gb200.", "p6e-gb300.")


def variables(cluster: Cluster, endpoints: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the Terraform variables of a cluster. `endpoints` maps services to their URLs in an emulator; without it,
    Terraform uses AWS.
    """
    fsx, budget = cluster.storage.fsx, cluster.budget
    return {
        "name": cluster.name,
        "region": cluster.region,
        "zones": list(cluster.zones),
        "kubernetes_version": cluster.kubernetes,
        "vpc_id": cluster.network.vpc or "",
        "subnet_ids": list(cluster.network.subnets),
        "vpc_cidr": cluster.network.cidr,
        "nat": cluster.network.nat,
        "endpoint_services": list(cluster.endpoint_services),
        "proxy": cluster.network.proxy or "",
        "no_proxy": list(cluster.network.no_proxy),
        "endpoint_public_cidrs": list(cluster.network.public_access),
        "admin_principals": list(cluster.access.admins),
        "user_principals": list(cluster.access.users),
        "iam": {"permissions_boundary": cluster.iam.permissions_boundary, "path": cluster.iam.path},
        "namespace": cluster.namespace,
        "system_nodes": {
            "instance_types": list(cluster.system.instances),
            "min": cluster.system.min,
            "max": cluster.system.max,
            "disk_gib": cluster.system.disk // GIB,
            "ami": cluster.system.ami,
        },
        "gpu_pools": {pool.name: pool_variables(pool) for pool in cluster.node_groups},
        "ami_parameters": list(cluster.ami_parameters),
        "karpenter": "karpenter" in cluster.components,
        "load_balancer_controller": "aws-load-balancer-controller" in cluster.components,
        "addon_versions": dict(cluster.addons),
        "efs": None if cluster.storage.efs is None else {"throughput": cluster.storage.efs.throughput},
        "fsx": None
        if fsx is None
        else {
            "size_gib": fsx.size // GIB,
            "deployment": fsx.deployment.upper().replace("-", "_"),
            "throughput": fsx.throughput,
            "import_prefix": fsx.prefix,
            "export": fsx.export,
            "export_deleted": fsx.export_deleted,
        },
        "s3_files": cluster.storage.s3_files,
        "s3_mountpoint": cluster.storage.mountpoint,
        "key_arns": {purpose: arn for purpose, arn in cluster.encryption.keys.items() if purpose != "bucket"},
        "bucket_name": cluster.storage.bucket or "",
        "bucket_key_arn": cluster.encryption.bucket or "",
        "repositories": list(cluster.repositories or (cluster.name,)),
        "sagemaker": cluster.sagemaker,
        "log_retention_days": cluster.log_days,
        "budget": None if budget is None else {"limit_usd": budget.limit, "email": budget.email},
        "tags": dict(cluster.tags),
        "endpoints": dict(endpoints or {}),
    }


def pool_variables(pool: GpuPool) -> dict[str, Any]:
    """Returns the variables of a pool. EFA is enabled by default if the first instance type has adapters."""
    first = pool.instances[0]
    efa = num_adapters(pool)
    return {
        "instance_types": list(pool.instances),
        "capacity": pool.capacity,
        "capacity_reservation_id": pool.reservation,
        "min": pool.min,
        "max": pool.max,
        "zone": pool.zone,
        "efa_interfaces": efa,
        "placement_group": efa > 0,
        "disk_gib": pool.disk // GIB,
        "disk_throughput_mibs": DISK_MIB_PER_SECOND,
        "parallel_pull": cores_of(first) >= PARALLEL_PULL_CORES,
        "ami_type": AMI[_accelerator(first)],
        "ami": pool.ami,
        "labels": {"windlass.dev/pool": pool.name, **pool.labels},
        "taint": True,
    }


def num_adapters(pool: GpuPool) -> int:
    """Returns the number of Elastic Fabric Adapters per node of a pool."""
    return efa_of(pool.instances[0]) if pool.efa is not False else 0


def _accelerator(instance_type: str) -> str:
    if instance_type.startswith(NEURON):
        return "neuron"
    return "arm-nvidia" if instance_type.startswith(ARM) else "nvidia"
