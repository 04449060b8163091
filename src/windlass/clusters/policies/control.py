"""IAM actions that Terraform needs for the control plane: EKS, roles, the key, logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from windlass.clusters.policies.statement import ArnScope, Conditions, Statement, actions, both
from windlass.spec.cluster import Cluster

ADDONS_IN: Final = ("nodegroup", "addon", "access-entry", "podidentityassociation")
LINKED: Final = ("eks", "eks-nodegroup", "autoscaling")
"""Services whose service-linked role EKS creates, with the caller's permissions, for the first cluster of an
account."""

GRANTED: Final = ("secrets", "registry", "file_systems")
"""Purposes of KMS keys. For a key of these purposes, the AWS service that encrypts with the key creates a grant with
the caller's permissions."""


def statements(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    """Yields the statements for EKS, IAM, KMS and CloudWatch Logs."""
    yield from _eks(scope)
    yield from _images(cluster, scope)
    yield from _roles(cluster, scope)
    yield from _key(cluster, scope)
    yield from _logs(cluster, scope)


def _eks(scope: ArnScope) -> Iterator[Statement]:
    yield Statement(
        "MakeCluster",
        ("eks:CreateCluster",),
        conditions=both(scope.new, scope.here),
        why="AWS checks eks:CreateCluster on no resource; the tag limits it",
    )
    yield Statement("ReadAddOnVersions", ("eks:DescribeAddonVersions",), conditions=scope.here)
    yield Statement(
        "OwnCluster",
        actions(
            "eks", "CreateAccessEntry", "CreateAddon", "CreateNodegroup", "CreatePodIdentityAssociation",
            "DeleteCluster", "DescribeCluster", "DescribeUpdate", "ListPodIdentityAssociations", "TagResource",
            "UntagResource", "UpdateClusterConfig", "UpdateClusterVersion",
        ),
        (scope.arn("eks", f"cluster/{scope.name}"),),
    )  # fmt: skip
    yield Statement(
        "PartsOfOwnCluster",
        actions(
            "eks", "AssociateAccessPolicy", "DeleteAccessEntry", "DeleteAddon", "DeleteNodegroup",
            "DeletePodIdentityAssociation", "DescribeAccessEntry", "DescribeAddon", "DescribeNodegroup",
            "DescribePodIdentityAssociation", "DescribeUpdate", "DisassociateAccessPolicy",
            "ListAssociatedAccessPolicies", "TagResource", "UntagResource", "UpdateAccessEntry", "UpdateAddon",
            "UpdateNodegroupConfig", "UpdateNodegroupVersion",
        ),
        scope.arns("eks", *(f"{kind}/{scope.name}/*" for kind in ADDONS_IN)),
    )  # fmt: skip


def _images(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    """Yields the statement for parameters of AMIs, which Terraform reads for node groups; Karpenter reads its own."""
    amis = (cluster.system.ami, *(pool.ami for pool in cluster.node_groups))
    groups = [ami for ami in amis if ami and not ami.startswith("ami-")]
    named = [scope.arn("ssm", f"parameter{ami.partition(':')[0]}") for ami in groups if ami.startswith("/")]
    if any("@" in ami for ami in groups):
        named.append(f"arn:{scope.partition}:ssm:{scope.region}::parameter/aws/service/eks/optimized-ami/*")
    if named:
        yield Statement("ReadImageParameters", ("ssm:GetParameter",), tuple(dict.fromkeys(named)))


def managed_policies(cluster: Cluster) -> tuple[str, ...]:
    """Returns the AWS managed policies that the configuration attaches to its roles."""
    found = [
        "AmazonEKSClusterPolicy",
        "AmazonEKSWorkerNodePolicy",
        "AmazonEKS_CNI_Policy",
        "AmazonEC2ContainerRegistryPullOnly",
        "service-role/AmazonEBSCSIDriverPolicy",
    ]
    if cluster.storage.efs is not None or cluster.storage.s3_files:
        found.append("service-role/AmazonEFSCSIDriverPolicy")
    if cluster.storage.s3_files:
        found.append("service-role/AmazonS3FilesCSIDriverPolicy")
    return tuple(found)


def _roles(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    roles = tuple(scope.role(name) for name in roles_of(cluster))
    boundary = cluster.iam.permissions_boundary
    bounded: Conditions = {"StringEquals": {"iam:PermissionsBoundary": boundary}} if boundary else {}
    yield Statement(
        "GrantToOwnRoles",
        actions("iam", "CreateRole", "PutRolePolicy", *(["PutRolePermissionsBoundary"] if boundary else [])),
        roles,
        bounded,
        why=""
        if boundary
        else "the permissions that these roles can get are limited by iam.permissions_boundary of the cluster file, or "
        "by a service control policy of the account, and not here",
    )
    yield Statement(
        "OwnRoles",
        actions(
            "iam", "DeleteRole", "DeleteRolePolicy", "GetRole", "GetRolePolicy", "ListAttachedRolePolicies",
            "ListInstanceProfilesForRole", "ListRolePolicies", "TagRole", "UntagRole", "UpdateAssumeRolePolicy",
            "UpdateRoleDescription",
        ),
        roles,
    )  # fmt: skip
    aws = tuple(f"arn:{scope.partition}:iam::aws:policy/{name}" for name in managed_policies(cluster))
    yield Statement(
        "AttachManagedPolicies",
        actions("iam", "AttachRolePolicy", "DetachRolePolicy"),
        roles,
        both({"ArnEquals": {"iam:PolicyARN": list(aws)}}, bounded),
    )
    if "karpenter" in cluster.components:
        yield Statement(
            "OwnInstanceProfile",
            actions(
                "iam",
                "AddRoleToInstanceProfile",
                "CreateInstanceProfile",
                "DeleteInstanceProfile",
                "GetInstanceProfile",
                "RemoveRoleFromInstanceProfile",
                "TagInstanceProfile",
                "UntagInstanceProfile",
            ),
            (scope.iam(f"instance-profile{scope.path}{scope.name}-karpenter-node"),),
        )
    yield from _passed(cluster, scope)
    linked = [
        *LINKED,
        *(["elasticfilesystem"] if cluster.storage.efs or cluster.storage.s3_files else []),
        *(["fsx"] if cluster.storage.fsx else []),
        *(["spot"] if any(pool.capacity == "spot" for pool in cluster.gpus) else []),
    ]
    services = [f"{name}.amazonaws.com" for name in linked]
    yield Statement(
        "RolesOfServices",
        ("iam:CreateServiceLinkedRole",),
        tuple(scope.iam(f"role/aws-service-role/{name}/*") for name in services),
        {"StringEquals": {"iam:AWSServiceName": services}},
        why="AWS creates a service-linked role at the first use in an account, with the caller's permissions",
    )


def roles_of(cluster: Cluster) -> tuple[str, ...]:
    """Returns the suffixes of the names of the roles that Terraform creates."""
    return (*passed(cluster), *(["sagemaker"] if cluster.sagemaker else []))


def passed(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Returns the services to which each role may be passed, by the suffix of the role's name."""
    found = {
        "cluster": ("eks.amazonaws.com",),
        "node": ("ec2.amazonaws.com", "eks.amazonaws.com"),
    }
    if not cluster.network.vpc:
        found["flow"] = ("vpc-flow-logs.amazonaws.com",)
    pods = ["run", "vpc-cni", "ebs-csi"]
    if cluster.storage.efs is not None or cluster.storage.s3_files:
        pods.append("efs-csi")
    if "karpenter" in cluster.components:
        found["karpenter-node"] = ("ec2.amazonaws.com",)
        pods.append("karpenter")
    if "aws-load-balancer-controller" in cluster.components:
        pods.append("load-balancer-controller")
    if cluster.storage.s3_files:
        found["s3-files"] = ("elasticfilesystem.amazonaws.com",)
    return found | dict.fromkeys(pods, ("eks.amazonaws.com", "pods.eks.amazonaws.com"))


def _passed(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    by_services: dict[tuple[str, ...], list[str]] = {}
    for name, services in passed(cluster).items():
        by_services.setdefault(services, []).append(scope.role(name))
    for services, roles in by_services.items():
        words = "And".join(service.split(".")[0].title().replace("-", "") for service in services)
        yield Statement(
            f"PassRolesTo{words}",
            ("iam:PassRole",),
            tuple(roles),
            {"StringEquals": {"iam:PassedToService": list(services)}},
        )


def _key(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    keys = scope.arns("kms", "key/*")
    yield Statement(
        "ReadKeys",
        actions("kms", "DescribeKey", "GetKeyPolicy", "GetKeyRotationStatus", "ListResourceTags"),
        keys,
        why="a key is described immediately after its creation, but policies see its tags only after minutes",
    )
    yield Statement("ListKeys", actions("kms", "ListAliases", "ListKeys"), conditions=scope.here)
    services = [
        "eks",
        "ecr",
        *(["elasticfilesystem"] if cluster.storage.efs or cluster.storage.s3_files else []),
        *(["fsx"] if cluster.storage.fsx else []),
    ]
    through = {"StringEquals": {"kms:ViaService": [f"{name}.{scope.region}.amazonaws.com" for name in services]}}
    why = "a service that encrypts with the key gets a grant on it, with the caller's permissions"
    grants = actions("kms", "CreateGrant", "Decrypt", "GenerateDataKeyWithoutPlaintext", "RetireGrant")
    existing = cluster.encryption.keys
    if existing:
        yield Statement("ReadExistingKeys", ("kms:DescribeKey",), tuple(dict.fromkeys(existing.values())))
    if granted := tuple(dict.fromkeys(arn for purpose, arn in existing.items() if purpose in GRANTED)):
        yield Statement("UseExistingKeysThroughServices", grants, granted, through, why=why)
    if not cluster.new_keys:
        return
    yield Statement("UseOwnKeyThroughServices", grants, keys, both(scope.own, through), why=why)
    yield Statement("MakeKey", ("kms:CreateKey",), conditions=both(scope.new, scope.here))
    yield Statement(
        "TagNewKey",
        ("kms:TagResource",),
        keys,
        both(scope.new, {"Null": {"kms:ResourceAliases": "true"}}),
        why="AWS requires it for a key created with tags. A user with this permission could tag, and so change, "
        "another key of the region that has no alias",
    )
    yield Statement(
        "OwnKey",
        actions(
            "kms",
            "CancelKeyDeletion",
            "CreateAlias",
            "DeleteAlias",
            "EnableKey",
            "EnableKeyRotation",
            "PutKeyPolicy",
            "ScheduleKeyDeletion",
            "TagResource",
            "UntagResource",
        ),
        keys,
        scope.own,
    )
    yield Statement(
        "OwnAlias",
        actions("kms", "CreateAlias", "DeleteAlias"),
        scope.arns("kms", f"alias/windlass/{scope.name}/*"),
    )


def _logs(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    groups = [f"/aws/eks/{scope.name}/cluster", *([] if scope.vpc else [f"/windlass/{scope.name}/flow"])]
    if cluster.storage.fsx is not None:
        groups.append(f"/aws/fsx/{scope.name}")
    yield Statement("ListLogs", ("logs:DescribeLogGroups",), conditions=scope.here)
    yield Statement(
        "OwnLogs",
        actions(
            "logs",
            "CreateLogGroup",
            "DeleteLogGroup",
            "ListTagsForResource",
            "ListTagsLogGroup",
            "PutRetentionPolicy",
            "TagResource",
            "UntagResource",
        ),
        scope.arns("logs", *(f"log-group:{group}{end}" for group in groups for end in ("", ":*"))),
    )
