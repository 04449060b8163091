"""Rules added outside Terraform to security groups of Terraform and of EKS are found (emulated)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clusters.audit.planted import pairs
from tests.fakeaws.emulator import Emulator
from tests.fakeaws.emulator.fixtures import shared_aws
from tests.servers.faulty import HTML, fault_proxy

from windlass.clusters.aws import Aws, NoAnswer
from windlass.clusters.security_groups import added_rules
from windlass.clusters.terraform.state import StateResource

__all__ = ["shared_aws"]
pytestmark = pytest.mark.slow


def port(number: int, source: str = "0.0.0.0/0", **more: Any) -> list[dict[str, Any]]:
    return [{"IpProtocol": "tcp", "FromPort": number, "ToPort": number, "IpRanges": [{"CidrIp": source, **more}]}]


def state(*found: tuple[str, str]) -> list[StateResource]:
    return [StateResource(f"{kind}.main", kind, "managed", id, is_tainted=False, values={}) for kind, id in found]


def test_foreign_rules_are_reported_and_controller_rules_are_not_emulated(shared_aws: Emulator) -> None:
    ec2 = shared_aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]

    def group(name: str) -> str:
        return str(ec2.create_security_group(GroupName=name, Description="d", VpcId=vpc)["GroupId"])

    nodes, of_eks, balancer = group("vision-node"), group("eks-cluster-sg-vision-1"), group("k8s-web")
    ec2.create_tags(Resources=[balancer], Tags=pairs({"elbv2.k8s.aws/cluster": "vision"}))
    made = ec2.authorize_security_group_ingress(GroupId=nodes, IpPermissions=port(2049, "10.9.0.0/16"))
    egress = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [nodes]}])
    known = [
        ("aws_vpc", vpc),
        ("aws_security_group", nodes),
        *(("aws_vpc_security_group_ingress_rule", one["SecurityGroupRuleId"]) for one in egress["SecurityGroupRules"]),
    ]
    assert made
    with Aws("us-east-1", environ=shared_aws.environ) as aws:
        assert added_rules(aws, state(*known)) == ()
        ec2.authorize_security_group_ingress(GroupId=nodes, IpPermissions=port(22))
        ec2.authorize_security_group_ingress(GroupId=nodes, IpPermissions=port(8080, "10.9.0.0/16"))
        ec2.authorize_security_group_ingress(GroupId=of_eks, IpPermissions=port(22))
        ec2.authorize_security_group_ingress(GroupId=of_eks, IpPermissions=port(443, "10.9.0.0/16"))
        ec2.authorize_security_group_ingress(
            GroupId=of_eks, IpPermissions=port(31000, Description="elbv2.k8s.aws/targetGroupBinding=shared")
        )
        ec2.authorize_security_group_ingress(GroupId=balancer, IpPermissions=port(443))
        found = added_rules(aws, state(*known))
    assert sorted((one.group, one.text) for one in found) == [
        ("eks-cluster-sg-vision-1", "tcp 22 from 0.0.0.0/0"),
        ("vision-node", "tcp 22 from 0.0.0.0/0"),
        ("vision-node", "tcp 8080 from 10.9.0.0/16"),
    ]
    assert all(one.remedy.startswith("aws ec2 revoke-security-group-ingress --group-id sg-") for one in found)


def test_html_response_is_not_an_empty_list_of_rules_emulated(shared_aws: Emulator) -> None:
    with fault_proxy(int(shared_aws.url.rpartition(":")[2])) as proxy:
        proxy.fault = lambda _request: HTML
        environ = {**shared_aws.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
        with Aws("us-east-1", environ=environ) as aws, pytest.raises(NoAnswer, match="answered by a page of HTML"):
            added_rules(aws, state(("aws_vpc", "vpc-1")))


def test_in_an_existing_vpc_groups_of_others_are_not_compared_emulated(shared_aws: Emulator) -> None:
    ec2 = shared_aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    groups = [
        str(ec2.create_security_group(GroupName=name, Description="d", VpcId=vpc)["GroupId"])
        for name in ("vision-node", "eks-cluster-sg-vision-1", "company-web")
    ]
    nodes, of_eks, _ = groups
    for one in groups:
        ec2.authorize_security_group_ingress(GroupId=one, IpPermissions=port(443))
    cluster = StateResource(
        "aws_eks_cluster.main",
        "aws_eks_cluster",
        "managed",
        "vision",
        is_tainted=False,
        values={"vpc_config": [{"cluster_security_group_id": of_eks}]},
    )
    with Aws("us-east-1", environ=shared_aws.environ) as aws:
        found = added_rules(aws, [*state(("aws_security_group", nodes)), cluster])
    assert {one.group for one in found if "from" in one.text} == {"vision-node", "eks-cluster-sg-vision-1"}
