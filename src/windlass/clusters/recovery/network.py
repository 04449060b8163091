"""Finds existing EC2 resources: networks by their tags, routes and associations by the objects that they connect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.recovery.search import (
    Finder,
    FoundResource,
    Lister,
    NotKnownYet,
    Search,
    Values,
    need,
    planned_name,
    status_of,
    tag_of,
)
from windlass.clusters.tags import OWNER


@dataclass(frozen=True, slots=True)
class Tagged:
    """An EC2 resource type that is found by the tags `windlass.dev/cluster` and `Name`."""

    operation: str
    key: str
    """Key of the list in the response."""
    id_key: str
    state_key: str = ""
    filters_key: str = "Filters"
    only: tuple[tuple[str, Any], ...] = ()
    """Attribute values that an item must also have."""
    never: tuple[tuple[str, Any], ...] = ()
    """Attribute values of items that Terraform does not create."""

    def find(self, search: Search, values: Values) -> list[FoundResource]:
        """Returns the resources with the planned name."""
        name = planned_name(values)
        found = self._described(search, {"Name": "tag:Name", "Values": [name]})
        return [one for one in found if one.name == name]  # AWS's tag filter may return inexact matches

    def every(self, search: Search) -> list[FoundResource]:
        """Returns all resources of the cluster."""
        return self._described(search)

    def _described(self, search: Search, *more: Mapping[str, Any]) -> list[FoundResource]:
        filters = [{"Name": f"tag:{OWNER}", "Values": [search.cluster]}, *more]
        items = search.pages("ec2", self.operation, self.key, **{self.filters_key: filters})
        return [self._found(one) for one in items if search.owns(one.get("Tags")) and self._is_meant(one)]

    def _is_meant(self, item: Mapping[str, Any]) -> bool:
        is_one = all(item.get(key) == value for key, value in self.only)
        return is_one and not any(item.get(key) == value for key, value in self.never)

    def _found(self, item: Mapping[str, Any]) -> FoundResource:
        word = str(item.get(self.state_key) or "") if self.state_key else ""
        created = str(item.get("CreateTime") or item.get("CreationTime") or item.get("CreationTimestamp") or "")
        return FoundResource(
            str(item[self.id_key]), status_of(word), tag_of(item.get("Tags"), "Name"), created, has_status=bool(word)
        )


TAGGED: Final[Mapping[str, Tagged]] = {
    "aws_vpc": Tagged("describe_vpcs", "Vpcs", "VpcId"),
    "aws_subnet": Tagged("describe_subnets", "Subnets", "SubnetId"),
    "aws_internet_gateway": Tagged("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    "aws_egress_only_internet_gateway": Tagged(
        "describe_egress_only_internet_gateways", "EgressOnlyInternetGateways", "EgressOnlyInternetGatewayId"
    ),
    "aws_nat_gateway": Tagged("describe_nat_gateways", "NatGateways", "NatGatewayId", "State", "Filter"),
    "aws_eip": Tagged("describe_addresses", "Addresses", "AllocationId"),
    "aws_route_table": Tagged("describe_route_tables", "RouteTables", "RouteTableId"),
    "aws_network_acl": Tagged("describe_network_acls", "NetworkAcls", "NetworkAclId", never=(("IsDefault", True),)),
    # Excludes the security group `default`, which every VPC has and which is deleted with the VPC.
    "aws_security_group": Tagged(
        "describe_security_groups", "SecurityGroups", "GroupId", never=(("GroupName", "default"),)
    ),
    "aws_vpc_security_group_ingress_rule": Tagged(
        "describe_security_group_rules", "SecurityGroupRules", "SecurityGroupRuleId", only=(("IsEgress", False),)
    ),
    "aws_vpc_security_group_egress_rule": Tagged(
        "describe_security_group_rules", "SecurityGroupRules", "SecurityGroupRuleId", only=(("IsEgress", True),)
    ),
    "aws_vpc_endpoint": Tagged("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "State"),
    "aws_flow_log": Tagged("describe_flow_logs", "FlowLogs", "FlowLogId", filters_key="Filter"),
    "aws_ebs_volume": Tagged("describe_volumes", "Volumes", "VolumeId", "State"),
    "aws_network_interface": Tagged("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
}


def _launch_template(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    filters = [{"Name": "launch-template-name", "Values": [name]}]
    found = search.pages("ec2", "describe_launch_templates", "LaunchTemplates", Filters=filters)
    return [
        FoundResource(one["LaunchTemplateId"], name=name, is_ours=search.owns(one.get("Tags")))
        for one in found
        if one["LaunchTemplateName"] == name
    ]


def _placement_group(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "name")
    filters = [{"Name": "group-name", "Values": [name]}]
    found = search.pages("ec2", "describe_placement_groups", "PlacementGroups", Filters=filters)
    return [
        FoundResource(name, status_of(str(one.get("State", ""))), name, is_ours=search.owns(one.get("Tags")))
        for one in found
        if one["GroupName"] == name
    ]


def _route(search: Search, values: Values) -> Sequence[FoundResource]:
    table = need(values, "route_table_id")
    keys = {
        "destination_cidr_block": "DestinationCidrBlock",
        "destination_ipv6_cidr_block": "DestinationIpv6CidrBlock",
        "destination_prefix_list_id": "DestinationPrefixListId",
    }
    for attribute, key in keys.items():
        if to := values.get(attribute):
            routes = [one for found in _tables(search, table) for one in found.get("Routes") or ()]
            return [FoundResource(f"{table}_{to}") for one in routes if one.get(key) == to]
    raise NotKnownYet("destination")


def _route_table_association(search: Search, values: Values) -> Sequence[FoundResource]:
    table = need(values, "route_table_id")
    attribute, key = ("gateway_id", "GatewayId") if values.get("gateway_id") else ("subnet_id", "SubnetId")
    joined = need(values, attribute)
    associations = [one for found in _tables(search, table) for one in found.get("Associations") or ()]
    return [FoundResource(f"{joined}/{table}") for one in associations if one.get(key) == joined]


def _tables(search: Search, table: str) -> list[Any]:
    filters = [{"Name": "route-table-id", "Values": [table]}]
    return search.pages("ec2", "describe_route_tables", "RouteTables", Filters=filters)


FINDERS: Final[Mapping[str, Finder]] = {
    **{name: tagged.find for name, tagged in TAGGED.items()},
    "aws_launch_template": _launch_template,
    "aws_placement_group": _placement_group,
    "aws_route": _route,
    "aws_route_table_association": _route_table_association,
}
LISTERS: Final[Mapping[str, Lister]] = {name: tagged.every for name, tagged in TAGGED.items()}
