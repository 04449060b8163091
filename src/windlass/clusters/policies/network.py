"""EC2 actions that Terraform needs for a cluster: a new VPC and its parts, launch templates, placement groups.

EC2 objects have generated ids; Windlass's names are tags. Therefore new objects must be tagged with the cluster, and
only objects with that tag may be changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from windlass.clusters.policies.statement import ArnScope, Statement, actions, both
from windlass.clusters.tags import OWNER
from windlass.spec.cluster import Cluster

MADE: Final = {
    "AllocateAddress": "elastic-ip",
    "CreateFlowLogs": "vpc-flow-log",
    "CreateInternetGateway": "internet-gateway",
    "CreateLaunchTemplate": "launch-template",
    "CreateNatGateway": "natgateway",
    "CreateRouteTable": "route-table",
    "CreateSecurityGroup": "security-group",
    "CreateSubnet": "subnet",
    "CreateVpc": "vpc",
    "CreateVpcEndpoint": "vpc-endpoint",
    "AuthorizeSecurityGroupEgress": "security-group-rule",
    "AuthorizeSecurityGroupIngress": "security-group-rule",
}
"""Resource type created by each action."""
PLACEMENT: Final = {"CreatePlacementGroup": "placement-group"}
"""Additional action for pools with a placement group."""
OF_A_NEW_VPC: Final = frozenset({
    "AllocateAddress", "AssociateRouteTable", "AttachInternetGateway", "CreateFlowLogs", "CreateInternetGateway",
    "CreateNatGateway", "CreateRoute", "CreateRouteTable", "CreateSubnet", "CreateVpc", "CreateVpcEndpoint",
    "DeleteFlowLogs", "DeleteInternetGateway", "DeleteNatGateway", "DeleteRoute", "DeleteRouteTable", "DeleteSubnet",
    "DeleteVpc", "DeleteVpcEndpoints", "DescribeVpcAttribute", "DetachInternetGateway", "DisassociateAddress",
    "DisassociateRouteTable", "ModifyVpcAttribute", "ModifyVpcEndpoint", "ReleaseAddress", "ReplaceRoute", "elastic-ip",
    "internet-gateway", "natgateway", "route-table", "subnet", "vpc", "vpc-endpoint", "vpc-flow-log",
})  # fmt: skip
"""Actions and resource types that no cluster in an existing VPC needs."""
DESCRIBED: Final = (
    "Addresses", "AddressesAttribute", "AvailabilityZones", "FlowLogs", "InstanceTypeOfferings", "InternetGateways",
    "LaunchTemplateVersions", "LaunchTemplates", "NatGateways", "NetworkAcls", "NetworkInterfaces", "PlacementGroups",
    "PrefixLists", "RouteTables", "SecurityGroupRules", "SecurityGroups", "Subnets", "VpcEndpoints", "Vpcs",
)  # fmt: skip


def statements(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    """Yields the EC2 statements that `up` and `down` need."""
    made = {name: MADE[name] for name in _used(scope, MADE)} | (PLACEMENT if cluster.node_groups else {})
    kinds = sorted(set(made.values()))
    if scope.vpc:
        yield Statement(
            "UseExistingVpc",
            actions("ec2", "CreateSecurityGroup", "DescribeVpcAttribute"),
            (scope.vpc_arn,),
            why="the security groups of the cluster are in it; nothing else of it is changed",
        )
    yield Statement(
        "ReadNetwork",
        actions("ec2", *(f"Describe{name}" for name in DESCRIBED)),
        conditions=scope.here,
        why="EC2 Describe actions cannot be limited to resources",
    )
    yield Statement("MakeNetwork", actions("ec2", *made), _ec2(scope, kinds), scope.new)
    yield Statement(
        "TagWhatIsMade",
        ("ec2:CreateTags",),
        _ec2(scope, kinds),
        both(scope.new, {"StringEquals": {"ec2:CreateAction": sorted(made)}}),
        why="AWS requires it for tags on creation; existing objects cannot be tagged with it",
    )
    yield Statement(
        "MakeInOwnNetwork",
        actions("ec2", *_used(scope, [
            "AssociateRouteTable", "AttachInternetGateway", "AuthorizeSecurityGroupEgress",
            "AuthorizeSecurityGroupIngress", "CreateFlowLogs", "CreateNatGateway", "CreateRoute", "CreateRouteTable",
            "CreateSecurityGroup", "CreateSubnet", "CreateVpcEndpoint",
        ])),
        _ec2(scope, ["elastic-ip", "internet-gateway", "route-table", "security-group", "subnet", "vpc"]), scope.own,
        why="an object is created inside another one, for which AWS checks the same action",
    )  # fmt: skip
    yield Statement(
        "ChangeOwnNetwork",
        actions("ec2", *_used(scope, [
            "CreateLaunchTemplateVersion", "DescribeVpcAttribute", "DisassociateRouteTable",
            "ModifyLaunchTemplate", "ModifyVpcAttribute", "ModifyVpcEndpoint",
            "ReplaceRoute", "RevokeSecurityGroupEgress", "RevokeSecurityGroupIngress",
        ])),
        _ec2(scope, ["launch-template", "route-table", "security-group", "security-group-rule", "subnet", "vpc",
                     "vpc-endpoint"]), scope.own,
    )  # fmt: skip
    yield Statement(
        "RetagOwnNetwork",
        ("ec2:CreateTags",),
        _ec2(scope, kinds),
        # Other tags may be changed freely, but the cluster tag must keep its value.
        both(scope.own, {"StringEqualsIfExists": {f"aws:RequestTag/{OWNER}": scope.name}}),
    )
    yield Statement(
        "UntagOwnNetwork",
        ("ec2:DeleteTags",),
        _ec2(scope, kinds),
        both(scope.own, {"ForAllValues:StringNotEquals": {"aws:TagKeys": OWNER}}),
    )
    if not scope.vpc:
        yield Statement(
            "TagDefaultGroup",
            ("ec2:CreateTags",),
            _ec2(scope, ["security-group"]),
            scope.new,
            why="EC2 creates the VPC's default group without tags, and Terraform removes its rules, so it must be "
            "tagged first. A user with this permission could tag, and so change, another security group of the region",
        )
    if cluster.endpoint_services:
        yield Statement(
            "NamesOfEndpoints",
            ("route53:AssociateVPCWithHostedZone",),
            (f"arn:{scope.partition}:route53:::hostedzone/*",),
            why="an interface endpoint with private DNS names gets a hosted zone, with the caller's permissions",
        )
    yield from _deleting(cluster, scope)
    yield from _launching(cluster, scope)


def _ec2(scope: ArnScope, kinds: Iterable[str]) -> tuple[str, ...]:
    return scope.arns("ec2", *(f"{kind}/*" for kind in _used(scope, kinds)))


def _used(scope: ArnScope, names: Iterable[str]) -> list[str]:
    """Returns the actions or resource types that a cluster needs: in an existing VPC, none of the VPC's own."""
    return [name for name in names if not scope.vpc or name not in OF_A_NEW_VPC]


def _deleting(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    names = ["DeleteFlowLogs", "DeleteInternetGateway", "DeleteLaunchTemplate", "DeleteNatGateway", "DeleteRoute",
             "DeleteRouteTable", "DeleteSecurityGroup", "DeleteSubnet", "DeleteVpc", "DeleteVpcEndpoints",
             "DetachInternetGateway", "DisassociateAddress", "ReleaseAddress"]  # fmt: skip
    kinds = ["elastic-ip", "internet-gateway", "launch-template", "natgateway", "route-table", "security-group",
             "subnet", "vpc", "vpc-endpoint", "vpc-flow-log"]  # fmt: skip
    if cluster.node_groups:
        names, kinds = [*names, "DeletePlacementGroup"], sorted([*kinds, "placement-group"])
    yield Statement("DeleteOwnNetwork", actions("ec2", *_used(scope, names)), _ec2(scope, kinds), scope.own)


def _launching(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    """Yields the permission to launch instances from a node group's template: EKS checks it when it creates the
    group.
    """
    why = "EKS refuses a node group with a launch template to a person who could not start instances from it"
    yield Statement(
        "LaunchFromOwnTemplates", ("ec2:RunInstances",), _ec2(scope, ["launch-template"]), scope.own, why=why
    )
    yield Statement(
        "LaunchTagged",
        ("ec2:RunInstances",),
        _ec2(scope, ["instance", "network-interface", "volume"]),
        scope.new,
        why=why,
    )
    yield Statement(
        "TagLaunched",
        ("ec2:CreateTags",),
        _ec2(scope, ["instance", "network-interface", "volume"]),
        both(scope.new, {"StringEquals": {"ec2:CreateAction": "RunInstances"}}),
        why=why,
    )
    with_pools = ["capacity-reservation", "placement-group"] if cluster.node_groups else []
    public = tuple(f"arn:{scope.partition}:ec2:{scope.region}::{kind}/*" for kind in ("image", "snapshot"))
    yield Statement(
        "LaunchIn",
        ("ec2:RunInstances",),
        (*_ec2(scope, [*with_pools, "security-group"]), scope.subnets_arn, *public),
        {"ArnLike": {"ec2:LaunchTemplate": scope.arn("ec2", "launch-template/*")}},
        why=f"{why}; the security group created by EKS for the cluster has no Windlass tag",
    )
