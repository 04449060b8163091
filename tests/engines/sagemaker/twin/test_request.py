"""Requests that SageMaker refuses, and those that the twin cannot serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.sagemaker.twin.jobs import request

from windlass.engines.sagemaker.service import LIMIT, VALIDATION, Refused
from windlass.engines.sagemaker.twin.request import check
from windlass.engines.sagemaker.twin.service import Twin


def channel(name: str = "training", uri: str = "s3://bucket/data", **source: str) -> dict[str, Any]:
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri, **source}}}


def body(**fields: Any) -> dict[str, Any]:
    return {**request(Path("/no/such/home"), "job", "true"), **fields}


SPOT = {"EnableManagedSpotTraining": True}
RESOURCES = {"InstanceType": "ml.x", "InstanceCount": 1, "VolumeSizeInGB": 1}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"TrainingJobName": "a_b"}, "trainingJobName"),
    "name that leads out": ({"TrainingJobName": "../x"}, "trainingJobName"),
    "name with a newline": ({"TrainingJobName": "job\n"}, "trainingJobName"),
    "long name": ({"TrainingJobName": "a" * 64}, "trainingJobName"),
    "unknown field": ({"Frobnicate": 1}, "unknown parameters: Frobnicate"),
    "role": ({"RoleArn": ""}, "'RoleArn' is missing"),
    "image": ({"AlgorithmSpecification": {"TrainingInputMode": "File"}}, "TrainingImage' is missing"),
    "pipe mode": ({"AlgorithmSpecification": {"TrainingImage": "i", "TrainingInputMode": "Pipe"}}, "'Pipe'"),
    "entry point": (
        {"AlgorithmSpecification": {"TrainingImage": "i", "ContainerEntrypoint": ["x" * 257]}}, "256 characters"),
    "no entry point": ({"AlgorithmSpecification": {"TrainingImage": "i", "ContainerEntrypoint": []}}, "1 to 100"),
    "output": ({"OutputDataConfig": {"S3OutputPath": "/tmp/x"}}, "must begin with s3://BUCKET"),
    "output that leads out": ({"OutputDataConfig": {"S3OutputPath": "s3://b/../x"}}, "has no . and no .."),
    "no hosts": ({"ResourceConfig": {**RESOURCES, "InstanceCount": 0}}, "InstanceCount' is 0"),
    "true hosts": ({"ResourceConfig": {**RESOURCES, "InstanceCount": True}}, "InstanceCount' is True"),
    "groups": ({"ResourceConfig": {**RESOURCES, "InstanceGroups": []}}, "of one kind alone"),
    "spot without a wait": ({**SPOT, "StoppingCondition": {"MaxRuntimeInSeconds": 9}}, "Invalid MaxWaitTimeInSeconds"),
    "spot with a short wait": (
        {**SPOT, "StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 8}}, "greater than or equal"),
    "a wait without spot": (
        {"StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 9}}, "only for EnableManagedSpot"),
    "spot and a warm pool": (
        {**SPOT, "StoppingCondition": {"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 9},
         "ResourceConfig": {**RESOURCES, "KeepAlivePeriodInSeconds": 60}}, "warm pools"),
    "hyperparameter": ({"HyperParameters": {"lr": 0.1}}, "HyperParameters.lr' must be a string"),
    "many hyperparameters": ({"HyperParameters": {str(at): "" for at in range(101)}}, "101 entries"),
    "variable": ({"Environment": {"1A": ""}}, "'1A'"),
    "value of a variable": ({"Environment": {"A": "x" * 513}}, "at most 512"),
    "NUL in a variable": ({"Environment": {"A": "x\0"}}, "Environment.A"),
    "channels": ({"InputDataConfig": [channel(str(at)) for at in range(21)]}, "21 channels"),
    "channel": ({"InputDataConfig": [channel("..")]}, "'..' at 'channelName'"),
    "channel with a slash": ({"InputDataConfig": [channel("a/b")]}, "channelName"),
    "channels of one name": ({"InputDataConfig": [channel(), channel()]}, "two channels have the name training"),
    "manifest file": ({"InputDataConfig": [channel(S3DataType="ManifestFile")]}, "S3DataType' is 'ManifestFile'"),
    "file system": ({"InputDataConfig": [{"ChannelName": "a", "DataSource": {"FileSystemDataSource": {}}}]},
                    "reads an S3DataSource"),
    "checkpoints": ({"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/etc"}}, "LocalPath' is '/etc'"),
    "checkpoints that lead out": (
        {"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/../x"}}, "LocalPath"),
    "checkpoints in the input": (
        {"CheckpointConfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/input"}}, "LocalPath"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_request_is_refused_by_name(case: str) -> None:
    fields, expected = CASES[case]
    with pytest.raises(Refused) as refused:
        check(body(**fields))
    assert refused.value.code == VALIDATION
    assert refused.value.message.startswith("1 validation error detected: ")
    assert expected in refused.value.message


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(Refused, match=r"^2 validation errors detected: .*trainingJobName.*; .*RoleArn"):
        check(body(TrainingJobName="-", RoleArn=""))


def test_more_hosts_than_this_machine_starts_are_a_limit() -> None:
    with pytest.raises(Refused) as refused:
        check(body(ResourceConfig={**RESOURCES, "InstanceCount": 101}))
    assert refused.value.code == LIMIT


def test_a_whole_request_passes() -> None:
    check(body(
        InputDataConfig=[channel(), channel("val", "file:///data", S3DataDistributionType="ShardedByS3Key")],
        CheckpointConfig={"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/ck"}, Environment={"A": "x" * 512},
        EnableManagedSpotTraining=True, StoppingCondition={"MaxRuntimeInSeconds": 9, "MaxWaitTimeInSeconds": 9},
        Tags=[{"Key": "a", "Value": "b"}], VpcConfig={"Subnets": [], "SecurityGroupIds": []},
    ))  # fmt: skip


def test_nothing_is_made_of_a_refused_request(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        Twin(tmp_path, {}, isolation="folders").create(body(TrainingJobName="../x"))
    assert list(tmp_path.iterdir()) == []


DRIVERS = [channel("sm_drivers", "file:///drivers")]


@pytest.mark.parametrize("given", [{"title": "it's"}, {"title": "'; touch /tmp/x; '"}, {"a=1; touch /tmp/x": "1"}])
def test_the_drivers_of_the_sdk_get_no_hyperparameter_that_a_shell_would_run(given: dict[str, str]) -> None:
    with pytest.raises(Refused, match="unescaped into a shell script"):
        check(body(HyperParameters=given, InputDataConfig=DRIVERS))
    check(body(HyperParameters=given))


def test_other_hyperparameters_reach_the_drivers_of_the_sdk() -> None:
    check(body(HyperParameters={"batch-size": "32", "title": 'a "b" $c `d`'}, InputDataConfig=DRIVERS))
