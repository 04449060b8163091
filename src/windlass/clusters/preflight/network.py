"""Checks of an existing VPC: its subnets, free addresses, DNS attributes, routes and endpoints. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from windlass.clusters.aws import Aws, aws_errors
from windlass.clusters.components.table import images
from windlass.clusters.preflight.finding import Finding, Level, unknown
from windlass.errors import UsageError, WindlassError
from windlass.spec.cluster import Cluster

NO_CONTROL_PLANE: Final = ("use1-az3", "usw1-az2", "cac1-az3")
"""Ids of zones in which EKS runs no control plane; the Terraform configuration excludes them too."""
CONTROL_PLANE_ADDRESSES: Final = 6
"""Free addresses that EKS requires in each subnet: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html"""
NODE_ADDRESSES: Final = 32
"""Addresses of a node: about two network interfaces, because the VPC CNI keeps one in reserve."""
WITHOUT_PROXY: Final = ("ec2", "eks-auth", "elasticfilesystem", "fsx")
"""Services that EKS add-ons call, which get no proxy settings."""
DEFAULT: Final = "0.0.0.0/0"
Item = Mapping[str, Any]


def subnets_of(aws: Aws, by: str, *values: str) -> list[Item]:
    """Returns the subnets that match a filter of EC2. Raises AwsError."""
    with aws_errors("list subnets", "ec2:DescribeSubnets"):
        return _pages(aws, "describe_subnets", "Subnets", by, *values)


def _pages(aws: Aws, operation: str, key: str, by: str, *values: str) -> list[Item]:
    pages = aws.client("ec2").get_paginator(operation).paginate(Filters=[{"Name": by, "Values": list(values)}])
    return [one for page in pages for one in page[key]]


def network_findings(aws: Aws, cluster: Cluster) -> Iterator[Finding]:
    """Yields the findings about an existing VPC, and about images that nodes without a route to the Internet need."""
    if cluster.network.nat == "none" and not cluster.network.proxy:
        yield images_finding(cluster)
    if cluster.network.vpc is None:
        return
    network = _Existing(aws, cluster, cluster.network.vpc)
    yield _checked("subnets", network.subnets)
    yield _checked("free addresses", network.addresses)
    yield _checked("DNS of the VPC", network.dns)
    yield _checked("routes", network.routes)


def _checked(name: str, check: Callable[[], tuple[Level, str, str]]) -> Finding:
    try:
        return Finding(name, *check())
    except WindlassError as error:
        return unknown(name, error)


def images_finding(cluster: Cluster) -> Finding:
    """Checks where nodes without a route to the Internet pull the images of components. Pure."""
    found = images(cluster.components)
    if not found or cluster.image_mirror:
        return Finding("images", "ok", f"of components: in {cluster.image_mirror}" if found else "components have none")
    text = f"nodes have no route to the registries of {', '.join(found)}"
    fix = (
        f"image_mirror: ACCOUNT.dkr.ecr.{cluster.region}.amazonaws.com, with copies under these whole names: by pull "
        "through cache rules of ECR with the registry as prefix (nvcr.io has none: copy it); or network: {proxy: …}"
    )
    return Finding("images", "fail", text, fix)


class _Existing:
    """An existing VPC as EC2 describes it. Each check returns a level, the finding and a fix, or raises AwsError."""

    def __init__(self, aws: Aws, cluster: Cluster, vpc: str) -> None:
        self._aws, self._cluster, self._vpc = aws, cluster, vpc
        self._region = f"--region {aws.region}"

    @cached_property
    def _all(self) -> dict[str, Item]:
        """Subnets of the VPC by id."""
        return {str(one["SubnetId"]): one for one in subnets_of(self._aws, "vpc-id", self._vpc)}

    @cached_property
    def _chosen(self) -> dict[str, Item]:
        """Subnets of the cluster by id. Raises UsageError if the VPC has none of them."""
        found = {id: self._all[id] for id in self._cluster.network.subnets if id in self._all}
        if not found:
            raise UsageError(f"{self._vpc} has none of the subnets")
        return found

    def subnets(self) -> tuple[Level, str, str]:
        """Checks that the subnets are in the VPC, in two zones, and in the zones of the pools."""
        asked = self._cluster.network.subnets
        if missing := [id for id in asked if id not in self._all]:
            where = {str(one["SubnetId"]): one["VpcId"] for one in subnets_of(self._aws, "subnet-id", *missing)}
            words = [f"{id} is in {where[id]}" if id in where else f"{id} does not exist" for id in missing]
            return "fail", f"{'; '.join(words)}, and vpc is {self._vpc}", self._line(self._all)
        zones = {id: str(one["AvailabilityZone"]) for id, one in self._all.items()}
        used = sorted({zones[id] for id in asked})
        if without := [id for id in asked if self._all[id].get("AvailabilityZoneId") in NO_CONTROL_PLANE]:
            text = f"EKS has no control plane in the zone of {', '.join(without)}"
            return "fail", text, self._line(id for id in asked if id not in without)
        if len(used) < 2:
            others = [id for id, zone in zones.items() if zone not in used]
            return (
                "fail",
                f"all are in {used[0]}, and EKS needs subnets in two zones",
                self._line([*asked, *others[:1]]),
            )
        for pool in self._cluster.gpus:
            if pool.zone and pool.zone not in used:
                others = [id for id, zone in zones.items() if zone == pool.zone]
                text = f"pool {pool.name} is in {pool.zone}, and the subnets are in {', '.join(used)}"
                return "fail", text, self._line([*asked, *others[:1]])
        return "ok", f"{len(asked)} subnets of {self._vpc} in {', '.join(used)}", ""

    def _line(self, ids: Iterable[str]) -> str:
        """Returns the line of the cluster file with these subnets, or a command if they are no better."""
        found = tuple(ids)
        if len(found) < 2 or found == self._cluster.network.subnets:
            return f"create one there, or list those that exist: aws ec2 describe-subnets {self._region}"
        return f"network: {{vpc: {self._vpc}, subnets: [{', '.join(found)}]}}"

    def addresses(self) -> tuple[Level, str, str]:
        """Checks that the subnets have addresses for the control plane and all nodes."""
        free = {id: int(one["AvailableIpAddressCount"]) for id, one in self._chosen.items()}
        nodes = self._cluster.system.max + sum(pool.max for pool in self._cluster.gpus)
        needed = nodes * NODE_ADDRESSES + CONTROL_PLANE_ADDRESSES * len(free)
        text = f"{', '.join(f'{id} has {num}' for id, num in free.items())}; {nodes} nodes need about {needed}"
        if full := [id for id, num in free.items() if num < CONTROL_PLANE_ADDRESSES]:
            return "fail", text, f"leave out {', '.join(full)}: EKS needs {CONTROL_PLANE_ADDRESSES} in each subnet"
        if sum(free.values()) < needed:
            return "warn", text, "add subnets, or lower max of pools: later nodes would not start"
        return "ok", text, ""

    def dns(self) -> tuple[Level, str, str]:
        """Checks the attributes that nodes need to resolve the API server and endpoints."""
        off = {}
        for attribute, option in (("enableDnsSupport", "dns-support"), ("enableDnsHostnames", "dns-hostnames")):
            with aws_errors(f"read {attribute} of {self._vpc}", "ec2:DescribeVpcAttribute"):
                found = self._aws.client("ec2").describe_vpc_attribute(VpcId=self._vpc, Attribute=attribute)
            if not found[attribute[0].upper() + attribute[1:]]["Value"]:
                off[attribute] = f"aws ec2 modify-vpc-attribute --vpc-id {self._vpc} --enable-{option} {self._region}"
        if off:
            text = f"{' and '.join(off)} of {self._vpc} is off: nodes would not find the API server"
            return "fail", text, "; ".join(off.values())
        return "ok", f"{self._vpc} resolves names, and gives instances host names", ""

    def routes(self) -> tuple[Level, str, str]:
        """Checks that nodes reach the Internet, or the endpoints of the services that they call."""
        network = self._cluster.network
        tables = {id: self._table(id) for id in self._chosen}
        closed = [id for id, one in self._chosen.items() if not _has_way_out(one, tables[id])]
        if not closed and network.nat != "none":
            return "ok", f"each subnet has a route to {DEFAULT}", ""
        missing = self._missing({str(table["RouteTableId"]) for table in tables.values()})
        if network.nat != "none" and not network.proxy:
            fix = "network: {nat: none}, if that is intended"
            if missing:
                fix = f"route {DEFAULT} to a NAT or transit gateway; or {fix}, and endpoints of {', '.join(missing)}"
            return "fail", f"{', '.join(closed)} has no route to {DEFAULT} that nodes can use", fix
        if not missing:
            return "ok", f"{self._vpc} has an endpoint of each service that needs one", ""
        text = f"{self._vpc} has no endpoint of {', '.join(missing)}"
        kind = "Gateway" if missing[0] == "s3" else "Interface --private-dns-enabled"
        fix = (
            f"ask the owner of the VPC for each: aws ec2 create-vpc-endpoint --vpc-id {self._vpc} --service-name "
            f"com.amazonaws.{self._aws.region}.{missing[0]} --vpc-endpoint-type {kind} {self._region}"
        )
        if any(_leaves(route) for table in tables.values() for route in table["Routes"]):
            return "warn", f"{text}; whether a network that it is connected to has them is unknown", fix
        return "fail", text, fix

    @cached_property
    def _tables(self) -> list[Item]:
        with aws_errors("list route tables", "ec2:DescribeRouteTables"):
            return _pages(self._aws, "describe_route_tables", "RouteTables", "vpc-id", self._vpc)

    def _table(self, subnet: str) -> Item:
        """Returns the route table of a subnet: its own, or the main one of the VPC."""

        def is_of(table: Item) -> tuple[bool, bool]:
            joined = table.get("Associations") or ()
            return any(one.get("SubnetId") == subnet for one in joined), any(one.get("Main") for one in joined)

        return max(self._tables, key=is_of)

    def _missing(self, tables: set[str]) -> list[str]:
        """Returns the services that nodes need an endpoint of and that have none in the VPC; S3's is in its routes."""
        with aws_errors("list endpoints", "ec2:DescribeVpcEndpoints"):
            endpoints = _pages(self._aws, "describe_vpc_endpoints", "VpcEndpoints", "vpc-id", self._vpc)
        there = {
            str(one["ServiceName"]).partition(f".{self._aws.region}.")[2]
            for one in endpoints
            if one["VpcId"] == self._vpc
            and one["State"].lower() == "available"
            and (one["VpcEndpointType"] == "Interface" or tables <= set(one.get("RouteTableIds") or ()))
        }
        called = (*self._cluster.called_services, "s3")
        if self._cluster.network.proxy:
            called = tuple(one for one in called if one in WITHOUT_PROXY)
        return [one for one in called if one not in there]


def _has_way_out(subnet: Item, table: Item) -> bool:
    """Whether nodes in a subnet reach the Internet; in a public subnet, only with public addresses."""
    for route in table["Routes"]:
        if route.get("DestinationCidrBlock") == DEFAULT and route.get("State") != "blackhole":
            is_public = str(route.get("GatewayId", "")).startswith("igw-")
            return not is_public or bool(subnet.get("MapPublicIpOnLaunch"))
    return False


def _leaves(route: Item) -> bool:
    """Whether a route leads to another network, such as one with shared endpoints."""
    is_local = str(route.get("GatewayId", "")).startswith(("local", "vpce-"))
    return not is_local and route.get("State") != "blackhole"
