"""Checks of an account before a run, with boto3 against an emulated account and a real S3 server. Not AWS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.engines.sagemaker.planning import BUCKET, FIELDS, ROLE
from tests.fakeaws.control_plane import ACCOUNT, REGION, ControlPlane
from tests.servers.s3 import s3_server

from windlass.cli.doctor import NAME_WIDTH
from windlass.engines.checks import Check
from windlass.engines.sagemaker.preflight import policies
from windlass.engines.sagemaker.preflight.account import Account
from windlass.engines.sagemaker.preflight.checks import checks
from windlass.spec.targets import SageMakerTarget

LOGIN = f"arn:aws:iam::{ACCOUNT}:user/ada"
FULL = {
    **FIELDS,
    "storage": f"s3://{BUCKET}/windlass",
    "kms_key": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/k",
    "subnets": ("subnet-1",),
    "security_groups": ("sg-1",),
}


def target(**fields: Any) -> SageMakerTarget:
    return SageMakerTarget(**{**FIELDS, "storage": f"s3://{BUCKET}/windlass", **fields})


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("account")
    with s3_server(folder / "s3") as server, pytest.MonkeyPatch.context() as patch:
        server.client().create_bucket(Bucket=BUCKET)
        plane = ControlPlane(folder, {})
        plane.start()
        for name, value in {**server.environ(), **plane.environ}.items():
            patch.setenv(name, value)
        yield plane
        plane.stop()


@pytest.fixture
def plane(listening: ControlPlane) -> Iterator[ControlPlane]:
    grant(listening, target())
    yield listening
    listening.is_login_expired = False
    listening.errors.clear()


def grant(plane: ControlPlane, one: SageMakerTarget) -> None:
    """Grants everything that a target needs in the account."""
    account = plane.account
    account.roles["training"] = policies.trust_policy()
    account.policies[ROLE] = policies.role_policy(one, ACCOUNT)
    account.policies[LOGIN] = policies.user_policy(one, ACCOUNT, ROLE)
    account.default_quotas = {"ml.g5.xlarge for training job usage": 0.0}
    account.quotas = {
        f"ml.g5.xlarge for {use}": 4.0
        for use in ("training job usage", "spot training job usage", "training warm pool usage")
    }
    account.images = {"train:1"}


def found(one: SageMakerTarget) -> dict[str, Check]:
    return {check.name: check for check in checks(one, Account(one.region))}


def bad(one: SageMakerTarget) -> dict[str, str]:
    return {name: check.level for name, check in found(one).items() if check.level != "ok"}


@pytest.mark.slow
def test_all_checks_pass_for_valid_account(plane: ControlPlane) -> None:
    seen = found(target())
    assert {check.level for check in seen.values()} == {"ok"}, seen
    assert seen["login"].found == f"{LOGIN} in account {ACCOUNT}"
    assert seen["quota"].found == "4 × ml.g5.xlarge at once"
    assert max(map(len, seen)) < NAME_WIDTH, "what is found begins in one column"


def without(policy: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {**policy, "Statement": [one for at, one in enumerate(policy["Statement"]) if at != number]}


@pytest.mark.slow
def test_each_statement_of_the_printed_policies_is_needed(plane: ControlPlane) -> None:
    one = target(**FULL)
    grant(plane, one)
    assert not bad(one)
    for arn, name in ((ROLE, "rights of role"), (LOGIN, "rights of login")):
        whole = plane.account.policies[arn]
        for number, statement in enumerate(whole["Statement"]):
            plane.account.policies[arn] = without(whole, number)
            check = found(one)[name]
            assert (check.level, statement["Action"][0].partition(":")[0] in check.found) == ("fail", True), statement
        plane.account.policies[arn] = whole


def test_policies_name_resources_where_possible() -> None:
    one = target(**FULL)
    for policy in (policies.role_policy(one, ACCOUNT), policies.user_policy(one, ACCOUNT, ROLE)):
        open_ended = [statement for statement in policy["Statement"] if statement["Resource"] == ["*"]]
        actions = {action for statement in open_ended for action in statement["Action"]}
        # These actions do not support resource names; metrics have a condition instead.
        assert actions <= {
            "sagemaker:Search",
            "ecr:GetAuthorizationToken",
            "cloudwatch:PutMetricData",
            "ec2:DescribeDhcpOptions",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "ec2:DescribeVpcs",
        }


@pytest.mark.slow
def test_expired_login_fails_check(plane: ControlPlane) -> None:
    plane.is_login_expired = True
    [check] = found(target()).values()
    assert (check.name, check.level) == ("login", "fail")
    assert "log in again" in check.fix


@pytest.mark.slow
def test_role_that_does_not_trust_sagemaker_fails_check(plane: ControlPlane) -> None:
    trusted = policies.trust_policy()
    trusted["Statement"][0]["Principal"] = {"Service": "ec2.amazonaws.com"}
    plane.account.roles["training"] = trusted
    assert bad(target()) == {"role": "fail"}
    assert "sagemaker.amazonaws.com" in found(target())["role"].fix


@pytest.mark.slow
def test_missing_role_fails_check(plane: ControlPlane) -> None:
    plane.account.roles.clear()
    assert bad(target())["role"] == "fail"
    assert found(target())["rights of role"].fix == "create the role first"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"image": FIELDS["image"][:-1] + "2"}, "image", "there is no image"),
        ({"image": "pytorch/pytorch:2.9"}, "image", "not in ECR"),
        ({"image": f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com/train:1"}, "image", "is in eu-west-1"),
        ({"storage": "s3://a-bucket-that-is-not-there/x"}, "storage", "there is no bucket"),
        ({"instance": "ml.p99.48xlarge"}, "quota", "offers no ml.p99.48xlarge"),
    ],
)
def test_missing_resources_of_target_fail_checks(
    plane: ControlPlane, fields: dict[str, Any], name: str, words: str
) -> None:
    check = found(target(**fields))[name]
    assert (check.level, words in check.found, bool(check.fix)) == ("fail", True, True), check


@pytest.mark.slow
def test_quotas_of_zero_are_reported(plane: ControlPlane) -> None:
    plane.account.quotas.clear()
    seen = found(target())
    assert (seen["quota"].level, seen["quota of spot"].level) == ("fail", "warn")
    assert "Service Quotas" in seen["quota"].fix


@pytest.mark.slow
def test_denied_queries_are_reported_as_unknown(plane: ControlPlane) -> None:
    plane.refuse("SimulatePrincipalPolicy", "AccessDenied", "not authorized", times=2, status=403)
    assert bad(target()) == {"rights of role": "warn", "rights of login": "warn"}


ENDS = f"arn:aws:iam::{ACCOUNT}:role/ends"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trusted", "policy", "expected"),
    [
        (policies.SCHEDULER, {}, "all permissions to end deployments"),
        (policies.SERVICE, {}, "does not trust EventBridge Scheduler"),
        (policies.SCHEDULER, {"Statement": []}, "missing: s3:DeleteObject on"),
    ],
)
def test_role_of_schedules_is_checked(
    plane: ControlPlane, trusted: str, policy: Mapping[str, Any], expected: str
) -> None:
    one = target(schedule_role=ENDS)
    plane.account.roles["ends"] = policies.trust_policy(trusted)
    plane.account.policies[ENDS] = {**policies.schedule_policy(one, ACCOUNT), **policy}
    check = found(one)["schedule role"]
    assert expected in check.found
    assert (check.level == "ok") is expected.startswith("all")
