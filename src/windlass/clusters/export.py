"""Exports a cluster as a Terraform configuration, or as an equivalent ClusterConfig of eksctl.

eksctl creates the VPC, the cluster, its nodes and add-ons, but no bucket, file systems or registry. Parts that eksctl
cannot create are returned with the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.eks.variables import DISK_MIB_PER_SECOND, num_adapters
from windlass.clusters.find import ManagedCluster
from windlass.clusters.working_folder import write_folder
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.spec.cluster import GIB, Cluster, GpuPool, Iam

API: Final = "eksctl.io/v1alpha5"
FAMILY: Final = "AmazonLinux2023"
"""AMI family in eksctl's config. eksctl selects the GPU drivers by instance type."""
KARPENTER_VERSION: Final = "1.14.1"
"""Karpenter version in eksctl's config, the same as the component's."""
ADDONS: Final = ("vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-ebs-csi-driver")
EKSCTL_FILE: Final = "eksctl.yaml"


@dataclass(frozen=True, slots=True)
class ExportedCluster:
    """Files written by `cluster export`."""

    files: tuple[str, ...]
    left_out: tuple[str, ...]
    """Parts of the cluster that the other tool cannot create."""


def export_eksctl(named: ManagedCluster, context: Context, *, force: bool) -> ExportedCluster:
    """Writes an equivalent ClusterConfig of eksctl. Raises UsageError if the file exists, unless forced."""
    from windlass.spec.yamlwriter import block_lines

    config, left_out = cluster_config(named.cluster)
    path = context.cwd / EKSCTL_FILE
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", "--force overwrites it")
    path.write_text("\n".join([*block_lines(config), ""]), encoding="utf-8")
    return ExportedCluster((path.name,), tuple(left_out))


def export_terraform(named: ManagedCluster, context: Context) -> ExportedCluster:
    """Writes the Terraform configuration of a cluster into its working folder, for use by hand."""
    with named.folder.locked("cluster export"):
        write_folder(named, context)
    return ExportedCluster(tuple(str(named.folder.path / name) for name in named.folder.written()), ())


def cluster_config(cluster: Cluster) -> tuple[dict[str, Any], list[str]]:
    """Returns the ClusterConfig, and the parts of the cluster that eksctl cannot create, one sentence each."""
    config: dict[str, Any] = {
        "apiVersion": API,
        "kind": "ClusterConfig",
        "metadata": {
            "name": cluster.name,
            "region": cluster.region,
            "version": cluster.kubernetes,
            "tags": {"windlass.dev/cluster": cluster.name, **cluster.tags},
        },
        **({"availabilityZones": list(cluster.zones)} if cluster.zones else {}),
        "vpc": _vpc(cluster),
        "iam": {"withOIDC": True, "podIdentityAssociations": _pod_identities(cluster)},
        "accessConfig": {"authenticationMode": "API", "accessEntries": _access(cluster)},
        "cloudWatch": {"clusterLogging": {"enableTypes": ["*"], "logRetentionInDays": cluster.log_days}},
        "addons": [
            _addon(name, {str(addon): version for addon, version in cluster.addons.items()})
            for name in (*ADDONS, *_storage_addons(cluster))
        ],
        "managedNodeGroups": [_system(cluster), *map(_group, cluster.node_groups)],
    }
    if "karpenter" in cluster.components:
        config["karpenter"] = {
            "version": KARPENTER_VERSION,
            "createServiceAccount": True,
            "withSpotInterruptionQueue": True,
        }
    return {name: value for name, value in config.items() if value}, _left_out(cluster)


def _vpc(cluster: Cluster) -> dict[str, Any]:
    network, public = cluster.network, cluster.network.public_access
    gateway = {"one": "Single", "per-zone": "HighlyAvailable", "none": "Disable"}[network.nat]
    existing = {"id": network.vpc, "subnets": {"private": {id: {"id": id} for id in network.subnets}}}
    return {
        **(existing if network.vpc else {"cidr": network.cidr, "nat": {"gateway": gateway}}),
        "clusterEndpoints": {"privateAccess": True, "publicAccess": bool(public)},
        **({"publicAccessCIDRs": list(public)} if public else {}),
    }


def _access(cluster: Cluster) -> list[dict[str, Any]]:
    """Returns EKS access entries with AWS's access policies, so no aws-auth ConfigMap is needed."""
    policy = "arn:aws:eks::aws:cluster-access-policy/"
    whole = [{"policyARN": f"{policy}AmazonEKSClusterAdminPolicy", "accessScope": {"type": "cluster"}}]
    scope = {"type": "namespace", "namespaces": [cluster.namespace]}
    inside = [{"policyARN": f"{policy}AmazonEKSEditPolicy", "accessScope": scope}]
    return [
        *({"principalARN": arn, "accessPolicies": whole} for arn in cluster.access.admins),
        *({"principalARN": arn, "accessPolicies": inside} for arn in cluster.access.users),
    ]


def _pod_identities(cluster: Cluster) -> list[dict[str, Any]]:
    """Returns pod identity associations for the drivers whose policies eksctl provides."""
    known = [("ebs-csi-controller-sa", {"ebsCSIController": True})]
    if cluster.storage.efs or cluster.storage.s3_files:
        known.append(("efs-csi-controller-sa", {"efsCSIController": True}))
    if "aws-load-balancer-controller" in cluster.components:
        known.append(("aws-load-balancer-controller", {"awsLoadBalancerController": True}))
    return [
        {"namespace": "kube-system", "serviceAccountName": account, "wellKnownPolicies": policies}
        for account, policies in known
    ]


def _addon(name: str, versions: Mapping[str, str]) -> dict[str, str]:
    return {"name": name, **({"version": versions[name]} if name in versions else {})}


def _storage_addons(cluster: Cluster) -> list[str]:
    storage = cluster.storage
    return [
        *(["aws-efs-csi-driver"] if storage.efs or storage.s3_files else []),
        *(["aws-fsx-csi-driver"] if storage.fsx else []),
    ]


def _system(cluster: Cluster) -> dict[str, Any]:
    system = cluster.system
    return {
        "name": "system",
        "amiFamily": FAMILY,
        "instanceTypes": list(system.instances),
        "minSize": system.min,
        "maxSize": system.max,
        "desiredCapacity": system.min,
        "volumeSize": system.disk // GIB,
        "volumeType": "gp3",
        "volumeEncrypted": True,
        "privateNetworking": True,
        "labels": {"windlass.dev/pool": "system"},
    }


def _group(pool: GpuPool) -> dict[str, Any]:
    block = None
    if pool.reservation:
        block = {"capacityReservationTarget": {"capacityReservationID": pool.reservation}}
    return {
        "name": pool.name,
        "amiFamily": FAMILY,
        "instanceTypes": list(pool.instances),
        "minSize": pool.min,
        "maxSize": pool.max,
        "desiredCapacity": pool.min,
        "volumeSize": pool.disk // GIB,
        "volumeType": "gp3",
        "volumeThroughput": DISK_MIB_PER_SECOND,
        "volumeEncrypted": True,
        "privateNetworking": True,
        **({"efaEnabled": True, "placement": {"groupName": f"{pool.name}-efa"}} if num_adapters(pool) else {}),
        **({"spot": True} if pool.capacity == "spot" else {}),
        **({"capacityReservation": block, "instanceMarketOptions": {"marketType": "capacity-block"}} if block else {}),
        **({"availabilityZones": [pool.zone]} if pool.zone else {}),
        "labels": {"windlass.dev/pool": pool.name, **pool.labels},
        "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}],
    }


def _left_out(cluster: Cluster) -> list[str]:
    storage = cluster.storage
    wanted = {
        "the bucket and the roles of pods that read it": True,
        "the repositories of images": True,
        "the EFS file system": storage.efs is not None,
        "the FSx file system and its link to the bucket": storage.fsx is not None,
        "S3 Files": storage.s3_files,
        "the role of SageMaker": cluster.sagemaker,
        "roles with a permissions boundary or a path": cluster.iam != Iam(),
        "encryption by existing KMS keys": bool(cluster.encryption.keys),
        "nodes with AMIs of the cluster file": bool(cluster.amis),
        "the budget": cluster.budget is not None,
        "NodePools of Karpenter": bool(cluster.karpenter_pools),
        "the interface endpoints": cluster.network.nat == "none" and not cluster.network.vpc,
        "the proxy of nodes and components": cluster.network.proxy is not None,
        "operators (trainer, jobset, …)": bool(cluster.components),
    }
    return [f"eksctl does not make {what}" for what, is_wanted in wanted.items() if is_wanted]
