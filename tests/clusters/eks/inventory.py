"""Lists the objects of an account, service by service, with AWS's own list calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.fakeaws.emulator import ACCOUNT, Emulator

GONE: Final = {"deleted", "deleting", "terminated", "shutting-down"}


def inventory(aws: Emulator) -> dict[str, list[str]]:
    """Returns the ids of all objects by kind, without deleted objects that a service still lists."""
    return {kind: sorted(of(aws)) for kind, of in LISTINGS.items()}


def _ec2(call: str, key: str, name: str) -> Callable[[Emulator], list[str]]:
    def listed(aws: Emulator) -> list[str]:
        found: list[dict[str, Any]] = getattr(aws.client("ec2"), call)()[key]
        return [thing[name] for thing in found if str(thing.get("State", "")) not in GONE]

    return listed


def _paged(service: str, call: str, key: str, name: str) -> Callable[[Emulator], list[str]]:
    def listed(aws: Emulator) -> list[str]:
        pages = aws.client(service).get_paginator(call).paginate()
        return [str(thing[name]) if name else str(thing) for page in pages for thing in page.get(key, [])]

    return listed


def _keys(aws: Emulator) -> list[str]:
    """Returns the keys of the account, without those pending deletion, which are free."""
    kms = aws.client("kms")
    keys = [kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"] for key in kms.list_keys()["Keys"]]
    return [key["KeyId"] for key in keys if key["KeyState"] != "PendingDeletion" and key["KeyManager"] == "CUSTOMER"]


def _buckets(aws: Emulator) -> list[str]:
    return [bucket["Name"] for bucket in aws.client("s3").list_buckets()["Buckets"]]


def _budgets(aws: Emulator) -> list[str]:
    budgets = aws.client("budgets").describe_budgets(AccountId=ACCOUNT).get("Budgets", [])
    return [budget["BudgetName"] for budget in budgets]


LISTINGS: Final[dict[str, Callable[[Emulator], list[str]]]] = {
    "VPC": _ec2("describe_vpcs", "Vpcs", "VpcId"),
    "subnet": _ec2("describe_subnets", "Subnets", "SubnetId"),
    "internet gateway": _ec2("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    "NAT gateway": _ec2("describe_nat_gateways", "NatGateways", "NatGatewayId"),
    "address": _ec2("describe_addresses", "Addresses", "AllocationId"),
    "route table": _ec2("describe_route_tables", "RouteTables", "RouteTableId"),
    "VPC endpoint": _ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    "network interface": _ec2("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    "security group": _ec2("describe_security_groups", "SecurityGroups", "GroupId"),
    "flow log": _ec2("describe_flow_logs", "FlowLogs", "FlowLogId"),
    "launch template": _ec2("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    "placement group": _ec2("describe_placement_groups", "PlacementGroups", "GroupName"),
    "volume": _ec2("describe_volumes", "Volumes", "VolumeId"),
    "cluster": _paged("eks", "list_clusters", "clusters", ""),
    "role": _paged("iam", "list_roles", "Roles", "RoleName"),
    "instance profile": _paged("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    "repository": _paged("ecr", "describe_repositories", "repositories", "repositoryName"),
    "EFS": _paged("efs", "describe_file_systems", "FileSystems", "FileSystemId"),
    "FSx": _paged("fsx", "describe_file_systems", "FileSystems", "FileSystemId"),
    "queue": _paged("sqs", "list_queues", "QueueUrls", ""),
    "event rule": _paged("events", "list_rules", "Rules", "Name"),
    "log group": _paged("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "key": _keys,
    "key alias": _paged("kms", "list_aliases", "Aliases", "AliasName"),
    "bucket": _buckets,
    "budget": _budgets,
}
