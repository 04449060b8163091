"""Checks of an existing VPC: its subnets, free addresses, DNS attributes, routes and endpoints. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from windlass.clusters.aws import Aws, aws_errors
from windlass.clusters.preflight.finding import Finding, unknown
from windlass.errors import WindlassError
from windlass.spec.cluster import Cluster

NO_CONTROL_PLANE: Final = ("use1-az3", "usw1-az2", "cac1-az3")
"""Ids of zones in which EKS runs no control plane; the Terraform configuration excludes them too."""
CONTROL_PLANE_ADDRESSES: Final = 6
"""Free addresses that EKS requires in each subnet: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html"""
NODE_ADDRESSES: Final = 32
"""Addresses of a node: about two network interfaces, because the VPC CNI keeps one in reserve."""
WITHOUT_PROXY: Final = ("ec2", "eks-auth", "elasticfilesystem", "fsx")
"""Services that EKS add-ons call, which get no proxy settings."""
TARGETS: Final = ("NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "VpcPeeringConnectionId", "LocalGatewayId",
                  "CoreNetworkArn", "GatewayId")  # fmt: skip
"""Keys of a route's target."""
DEFAULT: Final = "0.0.0.0/0"
Item = Mapping[str, Any]


def subnets_of(aws: Aws, name: str, *values: str) -> list[Item]:
    """Returns the subnets that match a filter of EC2. Raises AwsError."""
    with aws_errors("list subnets", "ec2:DescribeSubnets"):
        pages = aws.client("ec2").get_paginator("describe_subnets")
        return [
            one for page in pages.paginate(Filters=[{"Name": name, "Values": list(values)}]) for one in page["Subnets"]
        ]


def network_findings(aws: Aws, cluster: Cluster) -> Iterator[Finding]:
    """Yields the findings about the existing VPC of a cluster; none for a new VPC."""
    if cluster.network.vpc is None:
        return
    network = _Existing(aws, cluster, cluster.network.vpc)
    checks: Sequence[tuple[str, Callable[[], Finding]]] = (
        ("subnets", network.subnets),
        ("free addresses", network.addresses),
        ("DNS of the VPC", network.dns),
        ("routes", network.routes),
    )
    for name, check in checks:
        try:
            yield check()
        except WindlassError as error:
            yield unknown(name, error)


class _Existing:
    """An existing VPC as EC2 describes it."""

    def __init__(self, aws: Aws, cluster: Cluster, vpc: str) -> None:
        self._aws, self._cluster, self._vpc = aws, cluster, vpc
        self._region = f"--region {aws.region}"

    @cached_property
    def _all(self) -> dict[str, Item]:
        """Subnets of the VPC by id."""
        return {str(one["SubnetId"]): one for one in subnets_of(self._aws, "vpc-id", self._vpc)}

    @cached_property
    def _chosen(self) -> list[Item]:
        return [self._all[id] for id in self._cluster.network.subnets if id in self._all]

    def subnets(self) -> Finding:
        """Checks that the subnets are in the VPC, in two zones, and in the zones of the pools. Raises AwsError."""
        asked, name = self._cluster.network.subnets, "subnets"
        if missing := [id for id in asked if id not in self._all]:
            where = {str(one["SubnetId"]): one["VpcId"] for one in subnets_of(self._aws, "subnet-id", *missing)}
            words = [f"{id} is in {where[id]}" if id in where else f"{id} does not exist" for id in missing]
            return Finding(name, "fail", f"{'; '.join(words)}, and vpc is {self._vpc}", self._line(self._all))
        zones = {str(one["AvailabilityZone"]) for one in self._chosen}
        if without := [one["SubnetId"] for one in self._chosen if one.get("AvailabilityZoneId") in NO_CONTROL_PLANE]:
            rest = [id for id in asked if id not in without]
            return Finding(
                name, "fail", f"EKS has no control plane in the zone of {', '.join(without)}", self._line(rest)
            )
        if len(zones) < 2:
            text = f"all are in {', '.join(zones)}, and EKS needs subnets in two zones"
            return Finding(name, "fail", text, self._line([*asked, *self._elsewhere(zones)[:1]]))
        for pool in self._cluster.gpus:
            if pool.zone and pool.zone not in zones:
                text = f"pool {pool.name} is in {pool.zone}, and the subnets are in {', '.join(sorted(zones))}"
                there = [id for id, one in self._all.items() if one["AvailabilityZone"] == pool.zone]
                return Finding(name, "fail", text, self._line([*asked, *there[:1]]))
        return Finding(name, "ok", f"{len(asked)} subnets of {self._vpc} in {', '.join(sorted(zones))}")

    def _elsewhere(self, zones: set[str]) -> list[str]:
        return [id for id, one in self._all.items() if one["AvailabilityZone"] not in zones]

    def _line(self, ids: Sequence[str] | Mapping[str, Item]) -> str:
        """Returns the line of the cluster file that would list these subnets; the command that lists them if there are
        none to add.
        """
        found = list(ids)
        if len(found) < 2 or found == list(self._cluster.network.subnets):
            return f"create one there, or list those that exist: aws ec2 describe-subnets {self._region}"
        return f"network: {{vpc: {self._vpc}, subnets: [{', '.join(found)}]}}"

    def addresses(self) -> Finding:
        """Checks that the subnets have addresses for the control plane and all nodes. Raises AwsError."""
        free = {str(one["SubnetId"]): int(one["AvailableIpAddressCount"]) for one in self._chosen}
        nodes = self._cluster.system.max + sum(pool.max for pool in self._cluster.gpus)
        needed = nodes * NODE_ADDRESSES + CONTROL_PLANE_ADDRESSES * len(free)
        text = f"{', '.join(f'{id} has {num}' for id, num in free.items())}; {nodes} nodes need about {needed}"
        if full := [id for id, num in free.items() if num < CONTROL_PLANE_ADDRESSES]:
            fix = f"leave out {', '.join(full)}: EKS needs {CONTROL_PLANE_ADDRESSES} free addresses in each subnet"
            return Finding("free addresses", "fail", text, fix)
        if sum(free.values()) < needed:
            return Finding(
                "free addresses", "warn", text, "add subnets, or lower max of pools: later nodes would not start"
            )
        return Finding("free addresses", "ok", text)

    def dns(self) -> Finding:
        """Checks the attributes that nodes need to resolve the API server and endpoints. Raises AwsError."""
        off = []
        for attribute, option in (("enableDnsSupport", "dns-support"), ("enableDnsHostnames", "dns-hostnames")):
            with aws_errors(f"read {attribute} of {self._vpc}", "ec2:DescribeVpcAttribute"):
                found = self._aws.client("ec2").describe_vpc_attribute(VpcId=self._vpc, Attribute=attribute)
            if not found[attribute[0].upper() + attribute[1:]]["Value"]:
                off.append(
                    (attribute, f"aws ec2 modify-vpc-attribute --vpc-id {self._vpc} --enable-{option} {self._region}")
                )
        if off:
            names, fixes = zip(*off, strict=True)
            text = f"{' and '.join(names)} of {self._vpc} is off: nodes would not find the API server"
            return Finding("DNS of the VPC", "fail", text, "; ".join(fixes))
        return Finding("DNS of the VPC", "ok", f"{self._vpc} resolves names, and gives instances host names")

    def routes(self) -> Finding:
        """Checks that nodes reach the Internet, or the endpoints of the services that they call. Raises AwsError."""
        network, name = self._cluster.network, "routes"
        tables = {str(one["SubnetId"]): self._table(str(one["SubnetId"])) for one in self._chosen}
        closed = [one["SubnetId"] for one in self._chosen if not _has_way_out(one, tables[one["SubnetId"]])]
        if not closed and network.nat != "none":
            return Finding(name, "ok", f"each subnet has a route to {DEFAULT}")
        missing = self._missing(tables)
        if network.nat != "none" and not network.proxy:
            fix = (
                "network: {nat: none} if that is intended"
                if not missing
                else (
                    f"route {DEFAULT} to a NAT or transit gateway; or network: {{nat: none}} and endpoints of "
                    f"{', '.join(missing)}"
                )
            )
            return Finding(name, "fail", f"{', '.join(closed)} has no route to {DEFAULT} that nodes can use", fix)
        if not missing:
            return Finding(name, "ok", f"{self._vpc} has an endpoint of each service that needs one")
        text = f"{self._vpc} has no endpoint of {', '.join(missing)}"
        fix = (
            f"ask its owner for each: aws ec2 create-vpc-endpoint --vpc-endpoint-type Interface --private-dns-enabled "
            f"--vpc-id {self._vpc} --service-name com.amazonaws.{self._aws.region}.{missing[0]} --subnet-ids "
            f"{' '.join(network.subnets)} {self._region}"
        )
        if any(_leaves(route) for table in tables.values() for route in table.get("Routes", ())):
            return Finding(name, "warn", f"{text}; whether a network that it is connected to has them is unknown", fix)
        return Finding(name, "fail", text, fix)

    def _table(self, subnet: str) -> Item:
        """Returns the route table of a subnet: its own, or the main one of the VPC."""

        def is_of(table: Item) -> tuple[bool, bool]:
            joined = table.get("Associations") or ()
            return any(one.get("SubnetId") == subnet for one in joined), any(one.get("Main") for one in joined)

        return max(self._tables, key=is_of, default={})

    @cached_property
    def _tables(self) -> list[Item]:
        with aws_errors("list route tables", "ec2:DescribeRouteTables"):
            pages = self._aws.client("ec2").get_paginator("describe_route_tables")
            filters = [{"Name": "vpc-id", "Values": [self._vpc]}]
            return [one for page in pages.paginate(Filters=filters) for one in page["RouteTables"]]

    def _missing(self, tables: Mapping[str, Item]) -> list[str]:
        """Returns the services that nodes need an endpoint of and that have none in the VPC."""
        with aws_errors("list endpoints", "ec2:DescribeVpcEndpoints"):
            pages = self._aws.client("ec2").get_paginator("describe_vpc_endpoints")
            filters = [{"Name": "vpc-id", "Values": [self._vpc]}]
            found = [one for page in pages.paginate(Filters=filters) for one in page["VpcEndpoints"]]
        ids = {str(table.get("RouteTableId")) for table in tables.values()}
        there = {
            str(one["ServiceName"]).partition(f".{self._aws.region}.")[2]
            for one in found
            if one["VpcId"] == self._vpc
            and (one["VpcEndpointType"] == "Interface" or ids <= set(one.get("RouteTableIds") or ()))
        }
        has_proxy = bool(self._cluster.network.proxy)
        called = [one for one in self._cluster.called_services if not has_proxy or one in WITHOUT_PROXY]
        return [one for one in (*called, *([] if has_proxy else ["s3"])) if one not in there]


def _has_way_out(subnet: Item, table: Item) -> bool:
    """Whether nodes in a subnet reach the Internet; in a public subnet, only with public addresses."""
    for route in table.get("Routes", ()):
        if route.get("DestinationCidrBlock") == DEFAULT and route.get("State") != "blackhole":
            is_public = str(route.get("GatewayId", "")).startswith("igw-")
            return not is_public or bool(subnet.get("MapPublicIpOnLaunch"))
    return False


def _leaves(route: Item) -> bool:
    """Whether a route leads to another network, such as one with shared endpoints."""
    target = next((str(route[key]) for key in TARGETS if route.get(key)), "local")
    return target != "local" and not target.startswith("vpce-") and route.get("State") != "blackhole"
