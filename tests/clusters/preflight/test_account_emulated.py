"""Checks of an emulated account (not AWS): quotas and requests, offerings, permissions, pod identity associations."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.preflight.test_demand import cluster
from tests.fakeaws.emulator import ACCOUNT, Emulator, emulated_aws

from windlass.clusters.aws import Aws
from windlass.clusters.preflight.account import account_findings
from windlass.clusters.preflight.finding import Finding
from windlass.clusters.preflight.identity import PodsOf, association_finding
from windlass.clusters.preflight.rights import Statement, permission_finding, principal_of
from windlass.spec.cluster import Cluster

ROLE = f"arn:aws:iam::{ACCOUNT}:role/vision-run"
NEEDED: list[Statement] = [
    {"Effect": "Allow", "Action": ["ec2:CreateVpc", "ec2:CreateSubnet"], "Resource": "*"},
    {"Effect": "Allow", "Action": ["s3:CreateBucket"], "Resource": "arn:aws:s3:::windlass-vision"},
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    quotas = {"FAKEAWS_QUOTAS": "L-1216C47A=64,L-DB2E81BA=64"}
    with emulated_aws(tmp_path_factory.mktemp("aws"), auth=True, environ=quotas) as aws:
        yield aws


@pytest.fixture
def aws(emulator: Emulator) -> Iterator[Aws]:
    with Aws(environ=emulator.environ) as client:
        yield client


def found(aws: Aws, wanted: Cluster, statements: Sequence[Statement] = ()) -> dict[str, Finding]:
    return {one.name: one for one in account_findings(aws, wanted, lambda _account: statements)}


def user(emulator: Emulator, *allowed: str, statements: Sequence[Statement] = ()) -> Aws:
    """Creates a user with only these permissions; returns its clients."""
    iam, name = emulator.client("iam"), f"u{secrets.token_hex(4)}"
    iam.create_user(UserName=name)
    policy = {
        "Version": "2012-10-17",
        "Statement": [*statements, {"Effect": "Allow", "Action": [*allowed, "sts:GetCallerIdentity"], "Resource": "*"}],
    }
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
    keys = iam.create_access_key(UserName=name)["AccessKey"]
    environ = emulator.environ | {
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
    }
    return Aws(environ=environ)


def test_a_pool_within_its_quota_passes_emulated(aws: Aws) -> None:
    seen = found(aws, cluster({"name": "a10g", "instances": ["g5.12xlarge"], "max": 1}))
    assert {name: one.level for name, one in seen.items()} == {
        "identity": "warn",
        "permissions": "ok",
        "zones": "ok",
        "offer system": "ok",
        "offer a10g": "ok",
        "quota standard": "ok",
        "quota G/VT": "ok",
        "quota addresses": "ok",
        "quota VPCs": "ok",
    }
    assert "the root user" in seen["identity"].found
    assert seen["quota G/VT"].found.startswith("64 vCPUs (Running On-Demand G and VT instances), 0 of them used")


def test_partly_fitting_pool_warns_and_pool_without_nodes_fails_emulated(aws: Aws) -> None:
    wide = {"name": "a10g", "instances": ["g5.12xlarge"], "max": 8}
    seen = found(aws, cluster(wide, {"name": "a100", "instances": ["p4d.24xlarge"], "max": 2}))
    assert (seen["quota G/VT"].level, seen["quota P"].level) == ("warn", "fail")
    assert "the pools need 384 at most (a10g: 8 × g5.12xlarge)" in seen["quota G/VT"].found
    assert "--quota-code L-417A185B --desired-value 192 --region us-east-1" in seen["quota P"].fix


def test_quota_without_an_applied_value_uses_its_default_emulated(aws: Aws) -> None:
    seen = found(aws, cluster({"name": "t", "instances": ["trn1.32xlarge"], "max": 1}))
    assert seen["quota Trn"].found.startswith("0 vCPUs")


def test_a_request_is_filed_and_shown_as_open_emulated(aws: Aws) -> None:
    wanted = cluster({"name": "inf", "instances": ["inf2.xlarge"], "max": 3})
    short = found(aws, wanted)["quota Inf"]
    assert short.offer is not None
    assert short.offer.question == "Request 12 for quota Running On-Demand Inf instances in us-east-1?"
    assert re.match("requested 12 for .*PENDING", short.offer.act().found)
    again = found(aws, wanted)["quota Inf"]
    assert (again.level, again.offer) == ("fail", None), "it is not filed twice"
    assert re.search(r"a request for 12 is open since 20\d\d-", again.found)
    more = found(aws, cluster({"name": "inf", "instances": ["inf2.xlarge"], "max": 4}))["quota Inf"]
    assert "which is too few" in more.found


def test_other_running_instances_count_and_own_nodes_do_not_emulated(tmp_path: Path) -> None:
    quotas = {"FAKEAWS_QUOTAS": "L-1216C47A=10"}
    with emulated_aws(tmp_path / "aws", environ=quotas) as emulator, Aws(environ=emulator.environ) as client:
        ec2 = emulator.client("ec2")
        image = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "m7i.large", "MinCount": 1, "MaxCount": 1}
        own = [{"Key": "windlass.dev/cluster", "Value": "vision"}]
        ec2.run_instances(**image)
        ec2.run_instances(**image, TagSpecifications=[{"ResourceType": "instance", "Tags": own}])
        for _ in range(5):
            ec2.allocate_address(Domain="vpc")
        seen = found(client, cluster())
        assert seen["quota standard"].level == "ok"
        assert "10 vCPUs" in seen["quota standard"].found
        assert "2 of them used by others" in seen["quota standard"].found
        assert (seen["quota addresses"].level, seen["quota addresses"].offer is None) == ("fail", False)


def test_offering_zones_of_a_type_are_reported_emulated(aws: Aws) -> None:
    pools = [
        {"name": "some", "instances": ["p4d.24xlarge"]},
        {"name": "elsewhere", "instances": ["p5.48xlarge"]},
        {"name": "nowhere", "instances": ["g4ad.xlarge"]},
        {"name": "pinned", "instances": ["p4d.24xlarge"], "zone": "us-east-1a"},
        {"name": "mixed", "instances": ["g5.xlarge", "g4ad.xlarge"]},
    ]
    seen = found(aws, cluster(*pools, zones=["us-east-1a", "us-east-1b", "us-east-1c"]))
    assert (seen["offer some"].level, seen["offer some"].found) == (
        "ok",
        "p4d.24xlarge offered in us-east-1b, us-east-1c",
    )
    assert (seen["offer elsewhere"].level, seen["offer elsewhere"].fix) == (
        "fail",
        "before it is made: name us-east-1f in zones: of cluster.yaml, or in zone: of the pool",
    )
    assert "nor elsewhere in us-east-1" in seen["offer nowhere"].found
    assert seen["offer pinned"].level == "fail"
    assert seen["offer mixed"].level == "warn"


def test_requested_adapters_are_checked_emulated(aws: Aws) -> None:
    group = {"provision": "node-group", "efa": True}
    seen = found(
        aws,
        cluster(
            {"name": "a", "instances": ["p4d.24xlarge"], **group}, {"name": "b", "instances": ["g5.xlarge"], **group}
        ),
    )
    assert (seen["efa a"].level, seen["efa b"].level) == ("ok", "fail")
    assert seen["offer a"].level == "fail", "nodes with adapters are in the first zone, which lacks p4d"


def test_missing_permissions_are_reported_as_a_statement_emulated(emulator: Emulator) -> None:
    with user(emulator, "iam:SimulatePrincipalPolicy", "ec2:CreateVpc") as aws:
        seen = permission_finding(aws, NEEDED)
    assert (seen.level, seen.found[:28]) == ("fail", "2 of 3 actions are refused t")
    assert json.loads(seen.fix.removeprefix("add to its policy: ")) == [
        {"Effect": "Allow", "Action": ["ec2:CreateSubnet"], "Resource": "*"},
        {"Effect": "Allow", "Action": ["s3:CreateBucket"], "Resource": "arn:aws:s3:::windlass-vision"},
    ]


def test_printed_policy_is_sufficient_emulated(emulator: Emulator) -> None:
    with user(emulator, "iam:SimulatePrincipalPolicy", statements=NEEDED) as aws:
        seen = permission_finding(aws, NEEDED)
    assert (seen.level, seen.found.partition(" are allowed")[0]) == ("ok", "all 3 actions that cluster up and down use")


def test_permissions_are_unknown_without_permission_to_simulate_emulated(emulator: Emulator) -> None:
    with user(emulator, "ec2:CreateVpc") as aws:
        seen = permission_finding(aws, NEEDED)
    assert (seen.level, seen.found[:8]) == ("warn", "unknown:")
    assert "iam:SimulatePrincipalPolicy" in seen.fix


def test_role_session_is_simulated_as_its_role_emulated(emulator: Emulator) -> None:
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "sts:AssumeRole"}
        ],
    }
    iam = emulator.client("iam")
    arn = iam.create_role(RoleName="deployer", Path="/team/", AssumeRolePolicyDocument=json.dumps(trust))["Role"]["Arn"]
    allowed: dict[str, Any] = {"Effect": "Allow", "Action": "iam:GetRole", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_role_policy(RoleName="deployer", PolicyName="p", PolicyDocument=policy)
    keys = emulator.client("sts").assume_role(RoleArn=arn, RoleSessionName="doctor")["Credentials"]
    environ = emulator.environ | {
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        "AWS_SESSION_TOKEN": keys["SessionToken"],
    }
    with Aws(environ=environ) as aws:
        assert principal_of(aws) == arn


def test_offer_creates_a_missing_pod_identity_association_emulated(emulator: Emulator, aws: Aws) -> None:
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "pods.eks.amazonaws.com"},
                "Action": ["sts:AssumeRole", "sts:TagSession"],
            }
        ],
    }
    for name in ("vision-run", "vision-control"):
        emulator.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
    eks = emulator.client("eks")
    network = {"subnetIds": ["subnet-1", "subnet-2"]}
    eks.create_cluster(name="foreign", roleArn=ROLE.replace("run", "control"), resourcesVpcConfig=network)
    pods = PodsOf("foreign", "training")
    plain = association_finding(aws, pods, "")
    assert plain.fix == (
        "aws eks create-pod-identity-association --cluster-name foreign --namespace training "
        "--service-account default --role-arn ROLE_ARN --region us-east-1"
    )
    assert (plain.level, plain.offer) == ("warn", None)
    offered = association_finding(aws, pods, ROLE).offer
    assert offered is not None
    assert offered.act().level == "ok"
    without_agent = association_finding(aws, pods, ROLE)
    assert (without_agent.level, "eks-pod-identity-agent is not installed" in without_agent.found) == ("warn", True)
    eks.create_addon(clusterName="foreign", addonName="eks-pod-identity-agent")
    assert association_finding(aws, pods, "").level == "ok"
    other = association_finding(aws, pods, f"{ROLE}-other")
    assert (other.level, "update-pod-identity-association" in other.fix) == ("fail", True)
