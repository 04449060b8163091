"""Finders for parts of a VPC that are free but block its deletion, such as subnets, route tables and gateways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, row
from windlass.clusters.audit.report import FoundObject
from windlass.clusters.audit.scope import Scope
from windlass.clusters.tags import flat


def _subnets(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_subnets", "Subnets"):
        tags, id = flat(one.get("Tags")), one["SubnetId"]
        if owner := scope.owner(tags, vpc_id=one.get("VpcId", ""), is_network=True):
            yield row(
                SUBNET,
                scope,
                owner,
                id,
                tags=tags,
                detail=f"{one.get('CidrBlock', '')} in {one.get('AvailabilityZone', '?')}",
                remedy=command(scope, "ec2 delete-subnet --subnet-id", id),
            )


def _tables(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_route_tables", "RouteTables"):
        tags, id = flat(one.get("Tags")), one["RouteTableId"]
        owner = scope.owner(tags, vpc_id=one.get("VpcId", ""), is_network=True)
        # the main route table is deleted with its VPC
        if owner and not any(each.get("Main") for each in one.get("Associations") or ()):
            yield row(
                TABLE,
                scope,
                owner,
                id,
                tags=tags,
                remedy=command(scope, "ec2 delete-route-table --route-table-id", id),
            )


def _gateways(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("ec2", "describe_internet_gateways", "InternetGateways"):
        tags, id = flat(one.get("Tags")), one["InternetGatewayId"]
        vpc = next((each["VpcId"] for each in one.get("Attachments") or ()), "")
        if owner := scope.owner(tags, vpc_id=vpc, is_network=True):
            yield row(
                GATEWAY,
                scope,
                owner,
                id,
                tags=tags,
                detail=f"of {vpc}" if vpc else "of no VPC",
                remedy="detach it, then: " + command(scope, "ec2 delete-internet-gateway --internet-gateway-id", id),
            )


SUBNET: Final = ("ec2", "subnet")
TABLE: Final = ("ec2", "route table")
GATEWAY: Final = ("ec2", "internet gateway")

FINDERS: Final = (
    Finder(*SUBNET, ("ec2:DescribeSubnets",), _subnets),
    Finder(*TABLE, ("ec2:DescribeRouteTables",), _tables),
    Finder(*GATEWAY, ("ec2:DescribeInternetGateways",), _gateways),
)
