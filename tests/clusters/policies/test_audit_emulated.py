"""The audit's policy is sufficient and minimal in an emulated account that enforces policies (not AWS)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.clusters.audit.planted import Network, plant
from tests.fakeaws.emulator import Emulator, emulated_aws

from windlass.clusters.audit import AuditReport, audit
from windlass.clusters.audit.finders import FINDERS
from windlass.clusters.aws import Aws, iam_action
from windlass.clusters.policies.audit import audit_actions, audit_statements

pytestmark = pytest.mark.slow

OURS = {"windlass.dev/cluster": "train"}


@dataclass(frozen=True)
class Auditor:
    """A user with a single policy, in an emulated account with leaks."""

    aws: Emulator
    environ: dict[str, str]

    def allow(self, statements: list[dict[str, Any]]) -> None:
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        self.aws.client("iam").put_user_policy(UserName="auditor", PolicyName="audit", PolicyDocument=policy)

    def audit(self, kind: type[Aws] = Aws) -> AuditReport:
        with kind(environ=self.environ) as aws:
            return audit("train", aws, is_ours=True)


@pytest.fixture(scope="module")
def auditor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Auditor]:
    with emulated_aws(tmp_path_factory.mktemp("aws"), auth=True) as aws:
        iam = aws.client("iam")
        iam.create_user(UserName="auditor")
        key = iam.create_access_key(UserName="auditor")["AccessKey"]
        net = Network(aws, OURS)
        plant(aws, net, "train", OURS)
        subnets = {"subnetIds": [net.subnet, net.other_subnet]}
        eks, role = aws.client("eks"), aws.client("iam").get_role(RoleName="train-node")["Role"]["Arn"]
        eks.create_cluster(name="train", roleArn=role, resourcesVpcConfig=subnets)
        eks.create_nodegroup(clusterName="train", nodegroupName="system", subnets=[net.subnet], nodeRole=role)
        tags = [{"Key": name, "Value": value} for name, value in OURS.items()]
        aws.client("ssm").put_parameter(Name="/train/token", Value="x", Type="String", Tags=tags)
        aws.client("secretsmanager").create_secret(Name="train/token", SecretString="x", Tags=tags)
        resources = {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 30}
        aws.client("sagemaker").create_processing_job(
            ProcessingJobName="train-process",
            RoleArn=role,
            AppSpecification={"ImageUri": "x"},
            Tags=tags,
            ProcessingResources={"ClusterConfig": resources},
        )
        aws.client("sagemaker").create_transform_job(
            TransformJobName="train-transform",
            ModelName="train-model",
            TransformInput={"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/in"}}},
            TransformOutput={"S3OutputPath": "s3://bucket/out"},
            TransformResources={"InstanceType": "ml.m5.large", "InstanceCount": 1},
            Tags=tags,
        )
        keys = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        yield Auditor(aws, aws.environ | keys)


def test_audit_with_exactly_its_policy_has_no_unknowns_emulated(auditor: Auditor) -> None:
    auditor.allow(audit_statements())
    report = auditor.audit()
    assert report.unknown == ()
    assert {finder.kind for finder in FINDERS} - {one.kind for one in report.found} == {
        "autoscaling group",
        "capacity reservation",
        "classic load balancer",
        "image",
    }, "kinds that the emulator has no object of"


def test_audit_calls_exactly_the_actions_in_its_policy_emulated(auditor: Auditor) -> None:
    auditor.allow(audit_statements())
    called: set[str] = set()

    class Reporting(Aws):
        def client(self, service: str) -> Any:
            made = super().client(service)
            made.meta.events.register(
                "before-call", lambda model, **_: called.add(iam_action(service, model.name)), unique_id="called"
            )
            return made

    auditor.audit(Reporting)
    called.remove("sts:GetCallerIdentity")  # this action needs no permission
    assert called <= set(audit_actions())
    assert set(audit_actions()) - called == set()


def test_audit_without_permissions_reports_everything_as_unknown_emulated(auditor: Auditor) -> None:
    auditor.allow([{"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}])
    report = auditor.audit()
    assert report.found == ()
    assert not report.is_clean
    assert {finder.kind for finder in FINDERS} <= {one.kind for one in report.unknown}
    assert {one.hint for one in report.unknown} >= {"allow ec2:DescribeVolumes to the credentials' user or role"}


PRICE_ONLY = {"eks:DescribeClusterVersions"}
"""Actions that only affect the price: without them the cluster is reported, but not whether it has extended support."""


def rounds() -> list[set[str]]:
    """Returns all actions in groups that do not depend on each other: listings first, then calls per object."""
    place: dict[str, int] = {}
    for finder in FINDERS:
        for index, call in enumerate(finder.operations):
            action = iam_action(*call.split(":"))
            place[action] = max(index, place.get(action, 0))
    place |= {action: 1 + max(place.values()) for action in set(audit_actions()) - set(place)}
    return [{one for one in place if place[one] == index} - PRICE_ONLY for index in sorted(set(place.values()))]


@pytest.mark.parametrize("taken", rounds(), ids=lambda one: f"{len(one)}-{min(one)}")
def test_each_denied_action_is_reported_as_unknown_emulated(auditor: Auditor, taken: set[str]) -> None:
    rest = [{**one, "Action": [each for each in one["Action"] if each not in taken]} for one in audit_statements()]
    auditor.allow([one for one in rest if one["Action"]])
    report = auditor.audit()
    assert taken - {one.asked for one in report.unknown} == set()
    assert not report.is_clean


def test_one_denied_listing_hides_nothing_else_emulated(auditor: Auditor) -> None:
    auditor.allow(audit_statements())
    everything = {one.id for one in auditor.audit().found}
    deny = {"Effect": "Deny", "Action": "ec2:DescribeVolumes", "Resource": "*"}
    auditor.allow([*audit_statements(), deny])
    report = auditor.audit()
    assert {one.asked for one in report.unknown} == {"ec2:DescribeVolumes"}
    assert "volume" in {one.kind for one in report.unknown}
    assert not report.is_clean
    assert {one for one in everything if not one.startswith("vol-")} == {one.id for one in report.found}


def test_unreadable_tags_of_two_roles_are_one_unknown_emulated(auditor: Auditor) -> None:
    auditor.aws.client("iam").create_role(RoleName="another", AssumeRolePolicyDocument=_trust())
    deny = {"Effect": "Deny", "Action": "iam:ListRoleTags", "Resource": "*"}
    auditor.allow([*audit_statements(), deny])
    [unknown] = auditor.audit().unknown
    assert (unknown.kind, unknown.asked) == ("role", "iam:ListRoleTags")


def _trust() -> str:
    service = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [service]})
