"""Checks of an existing VPC in an emulated account (not AWS): each problem with the line that would solve it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.clusters.preflight.test_demand import cluster
from tests.fakeaws.emulator import Emulator, emulated_aws

from windlass.clusters.aws import Aws
from windlass.clusters.preflight.finding import Finding
from windlass.clusters.preflight.network import network_findings
from windlass.clusters.preflight.offerings import zones_of
from windlass.spec.cluster import Cluster

pytestmark = pytest.mark.slow
Found = dict[str, Finding]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulated_aws(tmp_path_factory.mktemp("aws")) as aws:
        yield aws


class Vpc:
    """A VPC of a company, with a subnet in each of these zones and one route table."""

    def __init__(self, aws: Emulator, zones: str = "ab", bits: int = 20) -> None:
        self._aws, self._ec2 = aws, aws.client("ec2")
        self.id = str(self._ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"])
        self._ec2.modify_vpc_attribute(VpcId=self.id, EnableDnsHostnames={"Value": True})
        self.table = str(self._ec2.create_route_table(VpcId=self.id)["RouteTable"]["RouteTableId"])
        self.subnets = [self.subnet(zone, f"10.8.{at * 16}.0/{bits}") for at, zone in enumerate(zones)]

    def subnet(self, zone: str, cidr: str) -> str:
        made = self._ec2.create_subnet(VpcId=self.id, CidrBlock=cidr, AvailabilityZone=f"us-east-1{zone}")
        subnet = str(made["Subnet"]["SubnetId"])
        self._ec2.associate_route_table(RouteTableId=self.table, SubnetId=subnet)
        return subnet

    def route(self, to: str = "0.0.0.0/0", **target: str) -> None:
        self._ec2.create_route(RouteTableId=self.table, DestinationCidrBlock=to, **target)

    def nat(self) -> str:
        gateway = self._ec2.create_nat_gateway(SubnetId=self.subnets[0], ConnectivityType="private")["NatGateway"]
        return str(gateway["NatGatewayId"])

    def endpoints(self, *services: str) -> None:
        for service in services:
            of = (
                {"VpcEndpointType": "Gateway", "RouteTableIds": [self.table]}
                if service == "s3"
                else {"VpcEndpointType": "Interface", "SubnetIds": self.subnets}
            )
            self._ec2.create_vpc_endpoint(VpcId=self.id, ServiceName=f"com.amazonaws.us-east-1.{service}", **of)

    def cluster(self, *pools: dict[str, Any], subnets: list[str] | None = None, **network: Any) -> Cluster:
        chosen = {"vpc": self.id, "subnets": subnets or self.subnets, **network}
        return cluster(*pools, network=chosen, components=["karpenter"])

    def check(self, *pools: dict[str, Any], **network: Any) -> Found:
        with Aws(environ=self._aws.environ) as aws:
            return {one.name: one for one in network_findings(aws, self.cluster(*pools, **network))}


def test_a_vpc_that_has_everything_passes_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator, "bad")
    vpc.route(NatGatewayId=vpc.nat())
    found = vpc.check({"name": "a", "instances": ["g5.xlarge"], "zone": "us-east-1d"})
    assert {name: one.level for name, one in found.items()} == {
        "subnets": "ok",
        "free addresses": "ok",
        "DNS of the VPC": "ok",
        "routes": "ok",
    }
    with Aws(environ=emulator.environ) as aws:
        assert zones_of(aws, vpc.cluster()) == ("us-east-1b", "us-east-1a", "us-east-1d")


def test_subnets_of_another_vpc_and_missing_ones_are_reported_with_the_line_to_write_emulated(
    emulator: Emulator,
) -> None:
    vpc, other = Vpc(emulator), Vpc(emulator)
    found = vpc.check(subnets=[vpc.subnets[0], other.subnets[0], "subnet-0f"])["subnets"]
    assert found.level == "fail"
    assert f"{other.subnets[0]} is in {other.id}; subnet-0f does not exist, and vpc is {vpc.id}" in found.found
    assert found.fix == f"network: {{vpc: {vpc.id}, subnets: [{', '.join(vpc.subnets)}]}}"
    none = vpc.check(subnets=["subnet-0e", "subnet-0f"])
    assert [none[name].level for name in ("subnets", "routes", "free addresses")] == ["fail", "warn", "warn"]
    assert none["routes"].found == f"unknown: {vpc.id} has none of the subnets"


def test_one_zone_is_too_few_and_a_subnet_of_another_one_is_offered_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator, "aab")
    found = vpc.check(subnets=vpc.subnets[:2])["subnets"]
    assert (found.level, found.found) == ("fail", "all are in us-east-1a, and EKS needs subnets in two zones")
    assert found.fix == f"network: {{vpc: {vpc.id}, subnets: [{', '.join(vpc.subnets)}]}}"
    alone = Vpc(emulator, "aa").check()["subnets"]
    assert alone.fix == "create one there, or list those that exist: aws ec2 describe-subnets --region us-east-1"


def test_a_zone_without_control_planes_of_eks_is_left_out_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator, "abc")
    found = vpc.check()["subnets"]
    assert (found.level, found.found) == ("fail", f"EKS has no control plane in the zone of {vpc.subnets[2]}")
    assert found.fix == f"network: {{vpc: {vpc.id}, subnets: [{', '.join(vpc.subnets[:2])}]}}"


def test_the_zone_of_a_pool_needs_a_subnet_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator, "abc")
    pool = {"name": "a", "instances": ["g5.xlarge"], "zone": "us-east-1c"}
    found = vpc.check(pool, subnets=vpc.subnets[:2])["subnets"]
    assert found.found == "pool a is in us-east-1c, and the subnets are in us-east-1a, us-east-1b"
    assert vpc.subnets[2] in found.fix


def test_addresses_for_all_nodes_are_counted_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator, bits=24)
    found = vpc.check({"name": "a", "instances": ["g5.xlarge"], "max": 64})["free addresses"]
    assert (found.level, "68 nodes need about 2188" in found.found) == ("warn", True)
    assert "lower max of pools" in found.fix


def test_dns_attributes_that_are_off_are_reported_with_the_commands_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator)
    emulator.client("ec2").modify_vpc_attribute(VpcId=vpc.id, EnableDnsHostnames={"Value": False})
    found = vpc.check()["DNS of the VPC"]
    assert (found.level, found.found[:22]) == ("fail", "enableDnsHostnames of ")
    assert found.fix == f"aws ec2 modify-vpc-attribute --vpc-id {vpc.id} --enable-dns-hostnames --region us-east-1"


def test_subnets_without_a_way_out_need_a_route_or_endpoints_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator)
    found = vpc.check()["routes"]
    assert (found.level, found.found) == (
        "fail",
        f"{', '.join(vpc.subnets)} has no route to 0.0.0.0/0 that nodes can use",
    )
    every = "ec2, ecr.api, ecr.dkr, eks, eks-auth, sts, sqs, ssm, s3"
    assert f"or network: {{nat: none}}, if that is intended, and endpoints of {every}" in found.fix

    vpc.endpoints("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "sts", "ssm", "s3")
    closed = vpc.check(nat="none")
    assert (closed["routes"].level, closed["routes"].found) == ("fail", f"{vpc.id} has no endpoint of sqs")
    assert "--service-name com.amazonaws.us-east-1.sqs" in closed["routes"].fix
    vpc.endpoints("sqs")
    assert vpc.check(nat="none")["routes"].level == "ok"
    assert vpc.check()["routes"].fix == "network: {nat: none}, if that is intended"


def test_endpoints_of_a_connected_network_are_unknown_emulated(emulator: Emulator) -> None:
    vpc, hub = Vpc(emulator), Vpc(emulator)
    ec2 = emulator.client("ec2")
    peering = ec2.create_vpc_peering_connection(VpcId=vpc.id, PeerVpcId=hub.id)["VpcPeeringConnection"]
    vpc.route("10.0.0.0/8", VpcPeeringConnectionId=peering["VpcPeeringConnectionId"])
    found = vpc.check(nat="none")["routes"]
    assert (found.level, "a network that it is connected to has them is unknown" in found.found) == ("warn", True)


def test_a_public_subnet_gives_nodes_no_way_out_without_public_addresses_emulated(emulator: Emulator) -> None:
    vpc, ec2 = Vpc(emulator), emulator.client("ec2")
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc.id)
    vpc.route(GatewayId=gateway)
    assert vpc.check()["routes"].level == "fail"
    for subnet in vpc.subnets:
        ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    assert vpc.check()["routes"].level == "ok"


def test_behind_a_proxy_only_services_of_add_ons_need_endpoints_emulated(emulator: Emulator) -> None:
    vpc = Vpc(emulator)
    found = vpc.check(proxy="http://proxy:3128")["routes"]
    assert (found.level, found.found) == ("fail", f"{vpc.id} has no endpoint of ec2, eks-auth")
    vpc.endpoints("ec2", "eks-auth")
    assert vpc.check(proxy="http://proxy:3128")["routes"].level == "ok"


def test_images_from_other_registries_are_named_where_nodes_cannot_reach_them() -> None:
    with Aws("us-east-1", environ={}) as aws:
        [found] = network_findings(aws, cluster(network={"nat": "none"}, components=["jobset", "nvidia-device-plugin"]))
        assert (found.name, found.level) == ("images", "fail")
        assert "registry.k8s.io/jobset/jobset, nvcr.io/nvidia/k8s-device-plugin" in found.found
        assert "image_mirror: ACCOUNT.dkr.ecr.us-east-1.amazonaws.com" in found.fix
        mirrored = cluster(network={"nat": "none"}, components=["jobset"], image_mirror="mirror.example.com")
        assert [one.level for one in network_findings(aws, mirrored)] == ["ok"]
        assert list(network_findings(aws, cluster(network={"nat": "none", "proxy": "http://p:1"}))) == []
        assert list(network_findings(aws, cluster())) == []
