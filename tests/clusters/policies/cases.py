"""For each policy statement, the Terraform operation that fails without it, or why the emulator cannot show that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final


class Step(StrEnum):
    """Operation that is tried without the statement."""

    MAKE = "make"
    """Apply the target in an empty account."""
    CHANGE = "change"
    """Apply with all permissions, then apply changed variables without the statement."""
    DESTROY = "destroy"
    """Apply with all permissions, then destroy without the statement."""
    STATE = "state"
    """Plan with the state in a bucket."""
    EXPORT = "export"
    """Export the files of FSx, as `down` does."""
    RECOVER = "recover"
    """Recover from a killed command."""


@dataclass(frozen=True, slots=True)
class Case:
    """How a missing statement shows."""

    target: str
    """Target address for Terraform."""
    step: Step = Step.MAKE
    change: Mapping[str, Any] = field(default_factory=dict)
    """Changed variables."""


NETWORK, KEY = "aws_vpc.main", 'aws_kms_key.main["logs"]'
EFS, CLUSTER = "aws_efs_file_system.main", "aws_eks_cluster.main"
CASES: Final = {
    "ReadNetwork": Case(NETWORK),
    "MakeNetwork": Case(NETWORK),
    "TagWhatIsMade": Case(NETWORK),
    "MakeInOwnNetwork": Case("aws_internet_gateway.main"),
    "ChangeOwnNetwork": Case(NETWORK),
    "RetagOwnNetwork": Case(NETWORK, Step.CHANGE, {"tags": {"team": "audio"}}),
    "UntagOwnNetwork": Case(NETWORK, Step.CHANGE, {"tags": {}}),
    "TagDefaultGroup": Case("aws_default_security_group.main"),
    "DeleteOwnNetwork": Case(NETWORK, Step.DESTROY),
    "MakeCluster": Case(CLUSTER),
    "OwnCluster": Case(CLUSTER),
    "ReadAddOnVersions": Case('data.aws_eks_addon_version.main["vpc-cni"]'),
    "PartsOfOwnCluster": Case('aws_eks_addon.node["vpc-cni"]'),
    "GrantToOwnRoles": Case("aws_iam_role_policy.flow"),
    "OwnRoles": Case("aws_iam_role.flow"),
    "AttachManagedPolicies": Case("aws_iam_role_policy_attachment.cluster"),
    "OwnInstanceProfile": Case("aws_iam_instance_profile.karpenter_node"),
    "PassRolesToEks": Case(CLUSTER),
    "PassRolesToEc2AndEks": Case("aws_eks_node_group.system"),
    "PassRolesToEksAndPods": Case("aws_eks_pod_identity_association.run"),
    "PassRolesToVpcFlowLogs": Case("aws_flow_log.main"),
    "PassRolesToEc2": Case("aws_iam_instance_profile.karpenter_node"),
    "MakeKey": Case(KEY),
    "TagNewKey": Case(KEY),
    "ReadKeys": Case(KEY),
    "ListKeys": Case('aws_kms_alias.main["logs"]'),
    "OwnKey": Case(KEY),
    "OwnAlias": Case('aws_kms_alias.main["logs"]'),
    "ListLogs": Case("aws_cloudwatch_log_group.flow"),
    "OwnLogs": Case("aws_cloudwatch_log_group.flow"),
    "OwnBucket": Case("aws_s3_bucket.main"),
    "EmptyBucket": Case("aws_s3_bucket.main", Step.DESTROY),
    "OwnRepositories": Case("aws_ecr_repository.main"),
    "MakeEfs": Case(EFS),
    "TagNewEfs": Case(EFS),
    "ListEfs": Case(EFS),
    "OwnEfs": Case(EFS),
    "MakeFsx": Case("aws_fsx_lustre_file_system.main"),
    "LinkFsx": Case("aws_fsx_data_repository_association.main"),
    "TagNewFsx": Case("aws_fsx_lustre_file_system.main"),
    "ListFsx": Case("aws_fsx_lustre_file_system.main"),
    "OwnFsx": Case("aws_fsx_data_repository_association.main"),
    "ExportFsx": Case("", Step.EXPORT),
    "CloudControl": Case("aws_cloudcontrolapi_resource.s3_files"),
    "OwnState": Case("", Step.STATE),
    "OwnQueue": Case("aws_sqs_queue.karpenter"),
    "OwnEventRules": Case("aws_cloudwatch_event_rule.karpenter"),
    "OwnBudget": Case("aws_budgets_budget.main"),
    "FindKeptBuckets": Case("aws_s3_bucket.main", Step.RECOVER, {"s3_files": False}),
}
"""Cases by the Sid of the required statement."""
NO_CALL: Final = "the emulator makes no calls of its own with the caller's rights"
UNSEEN: Final = {
    "LaunchFromOwnTemplates": "EKS tries the launch template, and the emulated one does not",
    "LaunchTagged": "EKS tries the launch template, and the emulated one does not",
    "TagLaunched": "EKS tries the launch template, and the emulated one does not",
    "LaunchIn": "EKS tries the launch template, and the emulated one does not",
    "FindState": "without it AWS answers 403 for a state that does not exist yet, and the emulator answers 404",
    "RolesOfServices": f"service-linked roles: {NO_CALL}",
    "UseOwnKeyThroughServices": f"grants on the key: {NO_CALL}",
    "InterfacesOfMountTargets": f"interfaces of EFS: {NO_CALL}",
    "GroupsForFsx": f"a check by FSx: {NO_CALL}",
    "RoleOfFsxForTheBucket": f"service-linked roles: {NO_CALL}",
    "RightsOfFsxOnTheBucket": f"service-linked roles: {NO_CALL}",
    "S3Files": f"Cloud Control: {NO_CALL}",
    "PassRolesToElasticfilesystem": f"Cloud Control: {NO_CALL}",
}
"""Statements that the emulator does not require, each with the reason."""
