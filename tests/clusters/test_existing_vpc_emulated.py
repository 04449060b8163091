"""A cluster lives in a VPC of others by exactly its policies, and leaves the VPC byte for byte as it was (emulated)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.audit.planted import pairs
from tests.clusters.eks.inventory import inventory
from tests.clusters.policies.clusters import cluster
from tests.clusters.policies.limited import LimitedUser, emulated_environ
from tests.fakeaws.emulator import Emulator, emulated_aws
from tests.fakeaws.emulator.fixtures import terraform  # noqa: F401

from windlass.clusters.policies import Purpose

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]
TAGS: Final = {
    "Name": "vision-shared",
    "team": "platform",
    "karpenter.sh/discovery": "vision",
    "kubernetes.io/cluster/vision": "owned",
}
"""Tags of the owner, which also point to a cluster of this name."""


class Company:
    """The VPC of a company, with subnets in two zones, a route out, an endpoint and a security group."""

    def __init__(self, aws: Emulator) -> None:
        self._ec2 = ec2 = aws.client("ec2")
        self.vpc = str(ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"])
        ec2.modify_vpc_attribute(VpcId=self.vpc, EnableDnsHostnames={"Value": True})
        self.subnets = [
            str(
                ec2.create_subnet(
                    VpcId=self.vpc, CidrBlock=f"10.8.{at * 16}.0/20", AvailabilityZone=f"us-east-1{zone}"
                )["Subnet"]["SubnetId"]
            )
            for at, zone in enumerate("bab")
        ]
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=self.vpc)
        table = ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
        for subnet in self.subnets:
            ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
        endpoint = ec2.create_vpc_endpoint(
            VpcId=self.vpc, ServiceName="com.amazonaws.us-east-1.s3", RouteTableIds=[table]
        )
        group = ec2.create_security_group(GroupName="vision-web", Description="d", VpcId=self.vpc)["GroupId"]
        named = [self.vpc, *self.subnets, gateway, table, endpoint["VpcEndpoint"]["VpcEndpointId"], group]
        ec2.create_tags(Resources=[one for one in named if one != group], Tags=pairs(TAGS))
        ec2.create_tags(Resources=[group], Tags=pairs({"karpenter.sh/discovery": "vision"}))
        self.ids = {*named, *self._default_groups()}
        self._groups = {group, *self._default_groups()}

    def _default_groups(self) -> set[str]:
        groups = self._ec2.describe_security_groups()["SecurityGroups"]
        return {one["GroupId"] for one in groups if one["VpcId"] == self.vpc and one["GroupName"] == "default"}

    def snapshot(self) -> str:
        """Returns all that EC2 describes of the VPC, its attributes, tags and parts, as text."""
        found: dict[str, Any] = {}
        for kind in ("vpcs", "subnets", "route_tables", "internet_gateways", "vpc_endpoints", "network_acls",
                     "nat_gateways", "addresses", "flow_logs"):  # fmt: skip
            found[kind] = {k: v for k, v in getattr(self._ec2, f"describe_{kind}")().items() if k != "ResponseMetadata"}
        groups = self._ec2.describe_security_groups()["SecurityGroups"]
        found["groups"] = [one for one in groups if one["GroupId"] in self._groups]
        for name in ("enableDnsSupport", "enableDnsHostnames"):
            answer = self._ec2.describe_vpc_attribute(VpcId=self.vpc, Attribute=name)
            found[name] = answer[name[0].upper() + name[1:]]
        return json.dumps(found, sort_keys=True, default=str, indent=1)


def test_a_cluster_in_an_existing_vpc_leaves_it_as_it_was_emulated(
    tmp_path: Path,
    terraform: dict[str, str],  # noqa: F811
) -> None:
    with emulated_aws(tmp_path / "aws", auth=True, environ=emulated_environ(tmp_path)) as aws:
        company = Company(aws)
        file = {
            "name": "vision",
            "region": "us-east-1",
            "network": {"vpc": company.vpc, "subnets": company.subnets, "proxy": "http://proxy.example.com:3128"},
            "gpus": [{"name": "p4", "instances": ["p4d.24xlarge"], "provision": "node-group", "zone": "us-east-1b"}],
            "storage": {"efs": True},
            "components": ["karpenter", "aws-load-balancer-controller"],
        }
        user = LimitedUser(aws, tmp_path, terraform)
        user.attach_for(cluster(json.dumps(file)), Purpose.UP, Purpose.AUDIT)
        (tmp_path / "cluster.yaml").write_text(json.dumps(file))
        before, things = company.snapshot(), inventory(aws)

        def run(*words: str, code: int = 0) -> Any:
            done = user.windlass("cluster", *words, "-o", "json")
            assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
            return json.loads(done.stdout.splitlines()[0])

        run("up", "--yes", "--no-components")
        assert company.snapshot() == before
        eks, efs = aws.client("eks"), aws.client("efs")
        config = eks.describe_cluster(name="vision")["cluster"]["resourcesVpcConfig"]
        assert sorted(config["subnetIds"]) == sorted(company.subnets)
        group = eks.describe_nodegroup(clusterName="vision", nodegroupName="gpu-p4")["nodegroup"]
        first, second, third = company.subnets
        assert sorted(group["subnets"]) == sorted([first, third])
        [system] = efs.describe_file_systems()["FileSystems"]
        targets = efs.describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]
        assert {one["SubnetId"] for one in targets} == {first, second}
        target = (tmp_path / "data" / "windlass" / "clusters" / "vision" / "targets.yaml").read_text()
        assert "http_proxy: http://proxy.example.com:3128" in target
        assert "10.8.0.0/16" in target

        planned = run("plan")
        assert planned["changes"] == []
        assert any("has no endpoint of ec2, eks-auth, elasticfilesystem" in note for note in planned["notes"])
        audit = run("audit", "vision", code=1)
        assert not company.ids & {one["id"] for one in [*audit["leaks"], *audit["possible"]]}

        removed = run("down", "vision", "--yes", "--force", "--delete-bucket")
        assert removed["audit"]["is_clean"], removed["audit"]
        assert company.snapshot() == before
        assert inventory(aws) == things
        denied = {action for action, is_denied in user.calls() if is_denied}
        assert denied <= {"iam:GetUser"}
