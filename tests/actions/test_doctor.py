"""`doctor --on` resolves its cluster, and checks an emulated account before a cluster is created."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakeaws.emulator import Emulator, emulated_aws

from windlass.actions.doctor import OfferedCheck, component_check, doctor, names, subject, taken_up
from windlass.clusters.aws import AwsError
from windlass.clusters.components.manager import ComponentStatus
from windlass.clusters.policies import Purpose, as_statements, policies
from windlass.clusters.preflight.finding import Offer
from windlass.engines.checks import Check
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster

CLUSTER = """
name: vision
region: us-east-1
gpus:
  - {name: a10g, instances: [g5.12xlarge], max: 8}
"""
PROGRAM = "#!/bin/sh\necho '{}'\n"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulated_aws(tmp_path_factory.mktemp("aws"), auth=True) as emulator:
        yield emulator


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Returns a working folder with a cluster file, and programs that print their versions."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, version in {"helm": "v3.19.0+g3d8990f", "aws": "aws-cli/2.31.0 Python/3.13 Linux/6.1"}.items():
        (folder / name).write_text(PROGRAM.format(version))
        (folder / name).chmod(0o755)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    environ = {"HOME": str(tmp_path), "WINDLASS_HOME": str(tmp_path / "home"), "AWS_EC2_METADATA_DISABLED": "true"}
    return Context({**environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}, tmp_path)


def within(context: Context, aws: Emulator, **more: str) -> Context:
    return Context({**context.environ, **aws.environ, **more}, context.cwd)


def examined(context: Context, on: str = "cluster.yaml") -> dict[str, OfferedCheck]:
    return {one.check.name: one for one in doctor(on, context, lambda _text: None)}


def test_file_cluster_name_and_target_are_distinguished(context: Context) -> None:
    (context.cwd / "targets.yaml").write_text('{"lab": {"kind": "kubernetes", "context": "lab"}}')
    kept = context.home / "clusters" / "vision"
    kept.mkdir(parents=True)
    (kept / "cluster.yaml").write_text(CLUSTER)
    by_file, by_name, by_target = (subject(on, context) for on in ("cluster.yaml", "vision", "lab"))
    assert by_file.named is not None
    assert by_name.named is not None
    assert (by_file.named.cluster.name, by_name.named.cluster.name) == ("vision", "vision")
    assert by_file.target is None, "it is not made yet"
    assert by_target.named is None
    assert by_target.target is not None
    assert by_target.target.context == "lab"
    assert names(context) == ["lab", "vision"]


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("no.yaml", "there is no file no.yaml"),
        ("nope", "no target is called 'nope'"),
        ("local", "target local is no Kubernetes cluster, but local"),
    ],
)
def test_unknown_subject_is_refused(context: Context, on: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        subject(on, context)


def test_account_is_not_queried_without_credentials(context: Context) -> None:
    found = examined(context)
    assert found["identity"].check.level == "fail"
    assert "aws sso login" in found["identity"].check.fix
    assert set(found) == {"terraform", "helm", "aws", "boto3", "identity", "cluster"}
    assert (found["helm"].check.level, found["aws"].check.found[:6]) == ("ok", "2.31.0")


def test_old_aws_command_and_missing_helm_are_reported(context: Context) -> None:
    folder = context.cwd / "bin"
    (folder / "aws").write_text(PROGRAM.format("aws-cli/1.45.11 Python/3.11"))
    (folder / "helm").unlink()
    found = examined(Context({**context.environ, "PATH": str(folder)}, context.cwd))
    assert (found["aws"].check.level, found["helm"].check.level) == ("warn", "fail")
    assert found["terraform"].check.level == "fail"
    assert all("install" in found[name].check.fix for name in ("aws", "helm", "terraform"))


@pytest.mark.slow
def test_account_is_checked_before_the_cluster_is_created_emulated(context: Context, aws: Emulator) -> None:
    found = examined(within(context, aws))
    assert found["offer a10g"].check == Check(
        "offer a10g",
        "ok",
        "g5.12xlarge offered in us-east-1a, us-east-1b (also in us-east-1c, us-east-1d, us-east-1e, us-east-1f)",
    )
    short = found["quota G/VT"]
    assert short.check.level == "fail"
    assert short.check.fix.startswith("windlass doctor --on cluster.yaml --request, or: aws service-quotas request-")
    assert short.offer is not None
    assert taken_up(short.offer).found.startswith("requested 384 for Running On-Demand G and VT instances: ")
    assert "is open since" in examined(within(context, aws))["quota G/VT"].check.found
    assert found["cluster"].check.fix == "windlass cluster up"


@pytest.mark.slow
def test_missing_association_of_a_foreign_cluster_is_reported_or_offered_emulated(
    context: Context, aws: Emulator
) -> None:
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "false",
        "interactiveMode": "Never",
        "args": ["eks", "get-token", "--cluster-name", "foreign", "--region", "us-east-1"],
    }
    config = {
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"exec": login}}],
    }
    (context.cwd / "config").write_text(json.dumps(config))
    lab = {"kind": "kubernetes", "context": "lab", "namespace": "team", "kubeconfig": str(context.cwd / "config")}
    (context.cwd / "targets.yaml").write_text(json.dumps({"lab": lab}))
    iam, role = aws.client("iam"), f"arn:aws:iam::{aws.account}:role/team-runs"
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": ["pods.eks.amazonaws.com", "eks.amazonaws.com"]},
                "Action": ["sts:AssumeRole", "sts:TagSession"],
            }
        ],
    }
    iam.create_role(RoleName="team-runs", AssumeRolePolicyDocument=json.dumps(trust))
    network = {"subnetIds": ["subnet-1", "subnet-2"]}
    aws.client("eks").create_cluster(name="foreign", roleArn=role, resourcesVpcConfig=network)
    found = examined(within(context, aws), "lab")
    assert found["pod identity"].check.fix == (
        "aws eks create-pod-identity-association --cluster-name foreign --namespace team --service-account default "
        "--role-arn ROLE_ARN --region us-east-1"
    )
    assert {name for name, one in found.items() if one.check.level == "fail"} <= {"api", "login"}
    assert not {"terraform", "helm"} & set(found), "it is not Windlass that makes this cluster"
    offer = {one.check.name: one.offer for one in doctor("lab", within(context, aws), print, role)}["pod identity"]
    assert offer is not None
    assert taken_up(offer).level == "ok"


@pytest.mark.slow
def test_permission_check_uses_the_printed_policies_emulated(context: Context, aws: Emulator) -> None:
    """A user with only the policies of `up` and `doctor` passes; without one action, that action is reported."""
    account = aws.account
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    iam, name = aws.client("iam"), f"u{secrets.token_hex(4)}"
    iam.create_user(UserName=name)
    keys = iam.create_access_key(UserName=name)["AccessKey"]
    login = {"AWS_ACCESS_KEY_ID": keys["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"]}
    for purpose in (Purpose.UP, Purpose.DOCTOR):
        for document in policies(cluster, account, purpose):
            iam.put_user_policy(UserName=name, PolicyName=document.name, PolicyDocument=json.dumps(document.document))
    # The emulator does not evaluate the principal of a simulation, to which the policy of doctor is limited.
    simulates = {"Effect": "Allow", "Action": "iam:SimulatePrincipalPolicy", "Resource": "*"}
    also = json.dumps({"Version": "2012-10-17", "Statement": [simulates]})
    iam.put_user_policy(UserName=name, PolicyName="simulates", PolicyDocument=also)
    seen = within(context, aws, **login)
    whole = examined(seen)
    unknown = [one.check for one in whole.values() if one.check.found.startswith("unknown")]
    assert unknown == [], f"the policy of doctor lacks something that it asks: {unknown}"
    # The emulator's simulation ignores the request context, so statements with conditions are denied there.
    conditional = {
        action
        for one in as_statements(cluster, account, Purpose.UP)
        if "Condition" in one
        for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    }
    assert set(lacking(whole["permissions"].check)) <= conditional


def lacking(check: Check) -> list[str]:
    """Returns the actions in the policy that a check reports as missing."""
    if check.level == "ok":
        return []
    policy = json.loads(check.fix.removeprefix("add to its policy: "))
    return [action for one in policy for action in one["Action"]]


@pytest.mark.parametrize(
    ("installed", "state", "problems", "level"),
    [
        ("1.0", "installed", (), "ok"),
        ("0.9", "installed", (), "warn"),
        ("1.0", "installed", ("not ready",), "fail"),
        ("1.0", "installing", (), "fail"),
        ("", "absent", (), "fail"),
        ("", "foreign", (), "ok"),
    ],
)
def test_component_status_becomes_a_check(installed: str, state: Any, problems: tuple[str, ...], level: str) -> None:
    found = component_check(ComponentStatus("jobset", installed, "1.0", state, problems), "windlass cluster up vision")
    assert (found.name, found.level, bool(found.fix)) == ("jobset", level, level != "ok")


def test_offer_refused_by_aws_becomes_a_warning() -> None:
    def refuse() -> None:
        raise AwsError("cannot request quota L-1: denied", "allow servicequotas:RequestServiceQuotaIncrease")

    found = taken_up(Offer("Request 8?", refuse))  # type: ignore[arg-type]
    assert (found.level, found.found) == ("warn", "Request 8? cannot request quota L-1: denied")
