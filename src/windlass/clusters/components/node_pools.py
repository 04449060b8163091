"""Builds Karpenter's NodePools and EC2NodeClasses from the GPU pools of a cluster. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from windlass.clusters.components.values import ClusterValues, GpuPool

CAPACITY_TYPES: Final = {"on-demand": "on-demand", "spot": "spot", "capacity-block": "reserved"}
GPU_TAINT: Final = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
EMPTY_SECONDS: Final = 300
"""Seconds before an empty GPU node is deleted: the next run of a sweep can reuse the node and its images."""
FREE_IOPS: Final = 3000
IOPS_PER_MIBS: Final = 4
"""IOPS per MiB/s of throughput: gp3 allows at most 0.25 MiB/s per provisioned IOPS."""
POOL_LABEL: Final = "windlass.dev/pool"


def objects(values: ClusterValues) -> list[dict[str, Any]]:
    """Returns an EC2NodeClass and a NodePool for each GPU pool."""
    return [each for pool in values.pools for each in (node_class(pool, values), node_pool(pool))]


def node_class(pool: GpuPool, values: ClusterValues) -> dict[str, Any]:
    """Returns the EC2NodeClass of a pool: image, network and root volume of its instances."""
    spec: dict[str, Any] = {
        **_ami(pool),
        "instanceProfile": values.instance_profile,
        "subnetSelectorTerms": [{"id": subnet} for subnet in values.private_subnet_ids],
        "securityGroupSelectorTerms": [{"id": values.node_security_group_id}],
        "blockDeviceMappings": [_root_volume(pool, values.disk_key_arn)],
        # Pods get a role from Pod Identity; a hop limit of 1 prevents them from using the node's role.
        "metadataOptions": {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 1},
        "instanceStorePolicy": "RAID0",
        "tags": dict(values.tags),
    }
    if pool.capacity_reservation_id:
        spec["capacityReservationSelectorTerms"] = [{"id": pool.capacity_reservation_id}]
    config: dict[str, Any] = {"featureGates": {"FastImagePull": True}} if pool.is_pull_parallel else {}
    if values.proxy:
        config["instance"] = {"environment": {"default": dict(values.proxy)}}
    if config and pool.ami_alias.startswith("al2023"):
        node_config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": config}
        spec["userData"] = json.dumps(node_config)
    return {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": pool.name}, "spec": spec}


def node_pool(pool: GpuPool) -> dict[str, Any]:
    """Returns the NodePool of a pool: allowed instance types, limits, and when nodes are deleted."""
    requirements = {
        "node.kubernetes.io/instance-type": list(pool.instance_types),
        "karpenter.sh/capacity-type": [CAPACITY_TYPES[pool.capacity]],
        **({"topology.kubernetes.io/zone": [pool.zone]} if pool.zone else {}),
    }
    template: dict[str, Any] = {
        "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": pool.name},
        "requirements": [{"key": key, "operator": "In", "values": found} for key, found in requirements.items()],
        # The expiry of a node would kill the training job on it.
        "expireAfter": "Never",
        **({"taints": [GPU_TAINT]} if pool.is_tainted else {}),
    }
    spec: dict[str, Any] = {
        "template": {"metadata": {"labels": {**pool.labels, POOL_LABEL: pool.name}}, "spec": template},
        # Consolidating a node in use would restart its run from the last checkpoint.
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": f"{EMPTY_SECONDS}s"},
    }
    if pool.max_nodes is not None:
        spec["limits"] = {"nodes": str(pool.max_nodes)}
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": pool.name}, "spec": spec}


def _ami(pool: GpuPool) -> dict[str, Any]:
    """Returns the fields that select the AMI. Without an alias, Karpenter needs the family to write the user data."""
    if not pool.ami:
        return {"amiSelectorTerms": [{"alias": pool.ami_alias}]}
    return {"amiFamily": "AL2023", "amiSelectorTerms": [{"ssmParameter" if pool.ami[0] == "/" else "id": pool.ami}]}


def _root_volume(pool: GpuPool, key_arn: str) -> dict[str, Any]:
    iops = max(FREE_IOPS, pool.disk_throughput_mibs * IOPS_PER_MIBS)
    disk = {
        "volumeSize": f"{pool.disk_gib}Gi",
        "volumeType": "gp3",
        "throughput": pool.disk_throughput_mibs,
        "iops": iops,
        "encrypted": True,
        **({"kmsKeyID": key_arn} if key_arn else {}),
        "deleteOnTermination": True,
    }
    name = "/dev/xvdb" if pool.ami_alias.startswith("bottlerocket") else "/dev/xvda"
    return {"deviceName": name, "ebs": disk}
