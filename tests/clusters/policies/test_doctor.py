"""The policy of doctor is sufficient and minimal in an emulated account that enforces policies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest
from tests.clusters.policies.clusters import cluster
from tests.fakeaws.emulator import ACCOUNT, Emulator, emulated_aws

from windlass.clusters.aws import Aws, AwsError
from windlass.clusters.policies import Purpose, Statement, as_statements, statements
from windlass.clusters.preflight.account import account_findings
from windlass.clusters.preflight.finding import Finding
from windlass.clusters.preflight.identity import PodsOf, association_finding
from windlass.clusters.preflight.network import network_findings

FILE: Final = """\
name: vision
region: us-east-1
gpus: [{name: gpus, instances: [g5.12xlarge], max: 8}]
"""
ANOTHER_QUOTA: Final = FILE.replace("g5.12xlarge", "p4d.24xlarge")
"""Cluster file with an instance type for which no quota increase was requested yet."""
UNSEEN: Final = {"ReadDefaultQuotas": "asked where AWS has no value for the account, and the emulator always has one"}
"""Statements that the emulator does not require, each with the reason."""
GIVEN: Final = statements(cluster(FILE), ACCOUNT, Purpose.DOCTOR)
ROLE: Final = f"arn:aws:iam::{ACCOUNT}:role/vision-run"
TRUST: Final = json.dumps({"Version": "2012-10-17", "Statement": []})


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Yields an account with a small quota, a cluster, the role of its runs, and a user."""
    quotas = {"FAKEAWS_QUOTAS": "L-1216C47A=64,L-DB2E81BA=64,L-417A185B=64"}
    with emulated_aws(tmp_path_factory.mktemp("aws"), auth=True, environ=quotas) as aws:
        role = aws.client("iam").create_role(RoleName="vision-run", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
        vpc = aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnets = [
            aws.client("ec2").create_subnet(VpcId=vpc, CidrBlock=f"10.0.{at}.0/20", AvailabilityZone=f"us-east-1{zone}")
            for at, zone in ((0, "a"), (16, "b"))
        ]
        ids = {"subnetIds": [one["Subnet"]["SubnetId"] for one in subnets]}
        aws.client("eks").create_cluster(name="vision", roleArn=role, resourcesVpcConfig=ids)
        aws.client("iam").create_user(UserName="checker")
        yield aws


def findings(emulator: Emulator, allowed: list[Statement], file: str = FILE) -> list[Finding]:
    """Returns the findings of doctor, and the results of its offers, for a user with these statements."""
    iam = emulator.client("iam")
    policy = json.dumps({"Version": "2012-10-17", "Statement": [one.as_json() for one in allowed]})
    iam.put_user_policy(UserName="checker", PolicyName="doctor", PolicyDocument=policy)
    key = iam.create_access_key(UserName="checker")["AccessKey"]
    login = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    wanted = cluster(file)
    with Aws(environ=emulator.environ | login) as aws:
        seen = list(account_findings(aws, wanted, lambda account: as_statements(wanted, account, Purpose.AUDIT)))
        network = emulator.client("eks").describe_cluster(name="vision")["cluster"]["resourcesVpcConfig"]
        line = f"network: {{vpc: {network['vpcId']}, subnets: [{', '.join(network['subnetIds'])}]}}\n"
        seen += network_findings(aws, cluster(file + line))
        seen.append(association_finding(aws, PodsOf("vision", "training"), ROLE))
        return [*seen, *(_done(one) for one in seen if one.offer is not None)]


def _done(one: Finding) -> Finding:
    assert one.offer is not None
    try:
        return one.offer.act()
    except AwsError as error:
        return Finding(one.name, "warn", f"unknown: {error.message}", error.hint)


def undone(emulator: Emulator) -> None:
    """Removes the association that an offer created."""
    eks = emulator.client("eks")
    for one in eks.list_pod_identity_associations(clusterName="vision")["associations"]:
        eks.delete_pod_identity_association(clusterName="vision", associationId=one["associationId"])


@pytest.mark.slow
def test_doctor_with_exactly_its_policy_completes_all_checks_emulated(emulator: Emulator) -> None:
    seen = findings(emulator, list(GIVEN))
    undone(emulator)
    assert [one for one in seen if "unknown" in one.found] == []
    assert any(one.found.startswith("requested") for one in seen)
    assert any(one.found.startswith("made a-") for one in seen)


@pytest.mark.slow
@pytest.mark.parametrize("sid", [one.sid for one in GIVEN if one.sid not in UNSEEN])
def test_doctor_without_a_statement_reports_the_denied_action_emulated(emulator: Emulator, sid: str) -> None:
    [missing] = [one for one in GIVEN if one.sid == sid]
    rest = [one for one in GIVEN if one is not missing]
    seen = findings(emulator, rest, ANOTHER_QUOTA if sid == "RequestQuotas" else FILE)
    undone(emulator)
    said = " ".join(f"{one.found} {one.fix}" for one in seen if "unknown" in one.found)
    assert any(action in said for action in missing.actions), seen
