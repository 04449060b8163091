"""Finders for the parts of a VPC: VPCs, security groups, network interfaces, NAT gateways, addresses, endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, hourly, row
from windlass.clusters.audit.report import FoundObject
from windlass.clusters.audit.scope import Owner, Scope, better
from windlass.clusters.tags import flat

OF_INSTANCE: Final = re.compile(r"aws-K8S-(i-[0-9a-f]+)")
"""Matches the description of a network interface that the VPC CNI created for an instance."""
ROUNDS: Final = {"deleted", "deleting", "failed", "rejected"}
"""States in which NAT gateways and endpoints are not reported: deleted, being deleted, failed or rejected."""


def _vpcs(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_vpcs", "Vpcs"):
        tags, id = flat(one.get("Tags")), one["VpcId"]
        if owner := scope.owner(tags, vpc_id=id, is_network=True):
            yield row(
                VPC,
                scope,
                owner,
                id,
                tags=tags,
                detail=one.get("CidrBlock", ""),
                remedy="terraform destroy, or: " + command(scope, "ec2 delete-vpc --vpc-id", id),
            )


def security_group_owner(scope: Scope, one: dict[str, Any]) -> Owner | None:
    """Returns why a security group belongs to the cluster. The group that EKS creates is recognized by its name."""
    tags, name = flat(one.get("Tags")), one["GroupName"]
    owner = scope.owner(tags, vpc_id=one.get("VpcId", ""), name=name)
    if owner is not None and owner.is_certain:
        return owner
    if re.fullmatch(rf"eks-cluster-sg-{re.escape(scope.name)}-\d+", name) and not scope.is_of_another(tags):
        return Owner(f"name {name}, of EKS for the cluster")
    return owner


def _security_groups(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_security_groups", "SecurityGroups"):
        owner = security_group_owner(scope, one)
        if owner and one["GroupName"] != "default":  # AWS deletes the default group with its VPC
            yield row(
                SECURITY_GROUP,
                scope,
                owner,
                one["GroupId"],
                name=one["GroupName"],
                tags=flat(one.get("Tags")),
                remedy=command(scope, "ec2 delete-security-group --group-id", one["GroupId"]),
            )


def _interfaces(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_network_interfaces", "NetworkInterfaces"):
        tags, at = flat(one.get("TagSet") or one.get("Tags")), one.get("Attachment") or {}
        owner = _interface_owner(scope, one, tags)
        if owner is None or (at.get("InstanceId") and at.get("DeleteOnTermination")):
            continue  # AWS deletes this interface with its instance
        id, managed = one["NetworkInterfaceId"], one.get("RequesterManaged")
        what = one.get("Description") or one.get("InterfaceType") or ""
        yield row(
            INTERFACE,
            scope,
            owner,
            id,
            tags=tags,
            detail=f"{one.get('Status', '')}: {what}",
            remedy="goes with what it belongs to; it blocks the deletion of the VPC until then"
            if managed
            else command(scope, "ec2 delete-network-interface --network-interface-id", id),
        )


def _interface_owner(scope: Scope, one: dict[str, Any], tags: dict[str, str]) -> Owner | None:
    owner = better(scope.owner(tags, vpc_id=one.get("VpcId", "")), scope.user(tags, subnets=[one.get("SubnetId", "")]))
    if scope.is_of_another(tags) or (owner is not None and owner.is_certain):
        return owner
    text = one.get("Description", "")
    if text == f"Amazon EKS {scope.name}":
        return Owner(f"description {text!r}")
    made_for = OF_INSTANCE.match(text)
    instance = (made_for[1] if made_for else "") or (one.get("Attachment") or {}).get("InstanceId", "")
    if instance in scope.instance_ids:
        return Owner(f"of {instance}, an instance of the cluster")
    groups = {group["GroupId"] for group in one.get("Groups") or ()} & scope.security_group_ids
    return Owner(f"in security group {min(groups)} of the cluster") if groups else owner


def _nats(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_nat_gateways", "NatGateways"):
        tags, id = flat(one.get("Tags")), one["NatGatewayId"]
        owner = scope.owner(tags, vpc_id=one.get("VpcId", ""), name=tags.get("Name", ""), is_network=True)
        if owner and one["State"] not in ROUNDS:
            yield row(
                NAT,
                scope,
                owner,
                id,
                tags=tags,
                prices=[hourly("nat")],
                detail=one["State"],
                remedy=command(scope, "ec2 delete-nat-gateway --nat-gateway-id", id),
            )


def _addresses(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_addresses", "Addresses"):
        tags, id = flat(one.get("Tags")), one.get("AllocationId", one["PublicIp"])
        owner = scope.owner(tags, name=tags.get("Name", ""))
        if (owner is None or not owner.is_certain) and one.get("NetworkInterfaceId"):
            owner = _holder(calls, scope, one["NetworkInterfaceId"], tags) or owner
        if owner:
            user = one.get("InstanceId") or one.get("NetworkInterfaceId")
            yield row(
                ADDRESS,
                scope,
                owner,
                id,
                tags=tags,
                prices=[hourly("public-ipv4")],
                detail=f"{one['PublicIp']}, {f'used by {user}' if user else 'not used'}",
                remedy=command(scope, "ec2 release-address --allocation-id", id),
            )


def _holder(calls: FinderCalls, scope: Scope, interface: str, tags: dict[str, str]) -> Owner | None:
    """Returns why the network interface of an address belongs to the cluster; None if it does not."""
    if scope.is_of_another(tags):
        return None
    for one in calls.items("ec2", "describe_network_interfaces", "NetworkInterfaces"):
        if one["NetworkInterfaceId"] == interface:
            owner = _interface_owner(scope, one, flat(one.get("TagSet") or one.get("Tags")))
            return Owner(f"on {interface} ({owner.reason})", owner.is_certain) if owner else None
    return None


def _endpoints(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_vpc_endpoints", "VpcEndpoints"):
        tags, id, kind = flat(one.get("Tags")), one["VpcEndpointId"], one.get("VpcEndpointType", "Gateway")
        owner = scope.owner(tags, vpc_id=one.get("VpcId", ""), name=tags.get("Name", ""), is_network=True)
        if owner is None or one.get("State", "").lower() in ROUNDS:
            continue
        zones = max(1, len(one.get("SubnetIds") or ()))
        yield row(
            ENDPOINT,
            scope,
            owner,
            id,
            tags=tags,
            prices=[] if kind == "Gateway" else [hourly("vpc-endpoint", kind.lower(), zones)],
            detail=f"{kind}, {one.get('ServiceName', '')}",
            remedy=command(scope, "ec2 delete-vpc-endpoints --vpc-endpoint-ids", id),
        )


VPC: Final = ("ec2", "VPC")
SECURITY_GROUP: Final = ("ec2", "security group")
INTERFACE: Final = ("ec2", "network interface")
NAT: Final = ("ec2", "NAT gateway")
ADDRESS: Final = ("ec2", "elastic IP address")
ENDPOINT: Final = ("ec2", "VPC endpoint")

FINDERS: Final = (
    Finder(*VPC, ("ec2:DescribeVpcs",), _vpcs),
    Finder(*SECURITY_GROUP, ("ec2:DescribeSecurityGroups",), _security_groups),
    Finder(*INTERFACE, ("ec2:DescribeNetworkInterfaces",), _interfaces),
    Finder(*NAT, ("ec2:DescribeNatGateways",), _nats),
    Finder(*ADDRESS, ("ec2:DescribeAddresses", "ec2:DescribeNetworkInterfaces"), _addresses),
    Finder(*ENDPOINT, ("ec2:DescribeVpcEndpoints",), _endpoints),
)
