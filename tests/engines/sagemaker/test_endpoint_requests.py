"""Names and requests of deployments on SageMaker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.sagemaker.hosted import fields
from tests.engines.sagemaker.planning import ROLE

from windlass.engines.deployments import NAME_PATTERN, DeploymentRequest
from windlass.engines.sagemaker.endpoint_requests import PART_NAME, Names, Requests, requests, scheduled_at
from windlass.spec.targets import SageMakerTarget

ENDS = "arn:aws:iam::123456789012:role/ends"


def made(
    ends_at: float | None = 1.8e9, digest: str = "0" * 64, target: dict[str, Any] | None = None, **others: Any
) -> Requests:
    request = DeploymentRequest("digits", Path("model"), ends_at, "ada", instance="ml.m5.large", **others)
    one = SageMakerTarget(**fields(**(target or {})))
    return requests(request, one, role=ROLE, schedule_role=ENDS, image="digits:1", model_digest=digest)


def test_names_depend_on_everything_but_the_end() -> None:
    first = made().names
    assert made(1.9e9).names == made(None).names == first
    others = (made(digest="1" * 64), made(replicas=2), made(run_id="digits-7f3k2"), made(target={"env": {"A": "1"}}))
    assert len({first, *(one.names for one in others)}) == 5
    assert {one.names.endpoint for one in others} == {"windlass-digits"}


@pytest.mark.slow
@given(st.from_regex(NAME_PATTERN, fullmatch=True), st.from_regex(r"[0-9a-f]{12}", fullmatch=True))
def test_names_fit_into_aws_and_are_read_back(name: str, digest: str) -> None:
    names = Names(name, digest)
    found = PART_NAME.fullmatch(names.part)
    assert found is not None
    assert (found["name"], found["digest"]) == (name, digest)
    for one in (names.part, names.endpoint):
        assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", one)


@given(st.floats(1.7e9, 4e9))
def test_schedules_end_at_or_after_the_requested_second(ends_at: float) -> None:
    endpoint, *later = made(ends_at).schedules
    at = scheduled_at(endpoint)
    assert at is not None
    assert 0 <= at - ends_at < 1
    assert {scheduled_at(one) for one in later} == {at + 900.0}


def test_time_of_a_schedule_in_an_unknown_time_zone_is_unknown() -> None:
    schedule = {"ScheduleExpression": "at(2040-01-02T09:00:00)", "ScheduleExpressionTimezone": "Nowhere/Land"}
    assert scheduled_at(schedule) is None


def test_settings_of_the_target_are_in_the_requests() -> None:
    one = made(target={"subnets": ("subnet-1",), "security_groups": ("sg-1",), "kms_key": "k", "tags": {"team": "a"}})
    assert one.model["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    assert one.config["KmsKeyId"] == "k"
    tags = {tag["Key"]: tag["Value"] for tag in one.endpoint["Tags"]}
    assert tags["team"] == "a"
    assert tags["windlass:deployment"] == "digits"
    assert tags["windlass:user"] == "ada"
    assert tags["windlass:ends-at"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")])
def test_targets_of_schedules_are_in_the_partition_of_the_region(region: str, partition: str) -> None:
    for one in made(target={"region": region}).schedules:
        assert one["Target"]["Arn"].startswith(f"arn:{partition}:scheduler:::aws-sdk:")
