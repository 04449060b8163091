"""A VPC without NAT gets its endpoints by exactly the printed policies, and loses them without leftovers (emulated)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clusters.eks.configuration import SERVICES, Terraform, copied_to
from tests.clusters.eks.inventory import inventory
from tests.clusters.policies.clusters import cluster
from tests.clusters.policies.limited import LimitedUser, emulated_environ
from tests.fakeaws.emulator import emulated_aws
from tests.fakeaws.emulator.fixtures import terraform  # noqa: F401

from windlass.clusters.eks.variables import variables
from windlass.clusters.policies import Purpose

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]
TARGETS = [
    f"-target={address}"
    for address in (
        "aws_vpc_endpoint.interface",
        "aws_vpc_endpoint.s3",
        "aws_vpc_security_group_ingress_rule.endpoint",
        "aws_route_table_association.private",
        "aws_route.private",
        "aws_nat_gateway.main",
    )
]


def test_emulated_endpoints_take_the_place_of_nat(tmp_path: Path, terraform: dict[str, str]) -> None:  # noqa: F811
    isolated = cluster("name: vision\nregion: us-east-1\nzones: [us-east-1a, us-east-1b]\nnetwork: {nat: none}\n")
    with emulated_aws(tmp_path / "aws", auth=True, environ=emulated_environ(tmp_path)) as aws:
        user = LimitedUser(aws, tmp_path, terraform)
        user.attach_for(isolated, Purpose.UP)
        before = inventory(aws)
        login = {name: value for name, value in user.environ.items() if name != "AWS_ENDPOINT_URL"}
        made = Terraform(copied_to(tmp_path), login)
        made.variables(variables(isolated, dict.fromkeys(SERVICES, aws.url)))
        made.run("init", "-no-color")

        made.run("apply", "-auto-approve", "-no-color", *TARGETS)
        endpoints = aws.client("ec2").describe_vpc_endpoints()["VpcEndpoints"]
        named = {one["ServiceName"].removeprefix("com.amazonaws.us-east-1.") for one in endpoints}
        assert named == {*isolated.endpoint_services, "s3"}
        found = inventory(aws)
        assert (len(found["subnet"]) - len(before["subnet"]), found["NAT gateway"], found["address"]) == (2, [], [])
        made.run("plan", "-detailed-exitcode", "-no-color", *TARGETS)  # exits with 2 if there are changes

        made.run("destroy", "-auto-approve", "-no-color")
        assert inventory(aws) == before
