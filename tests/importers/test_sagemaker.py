"""SageMaker training jobs become a job and a target, whose plan makes the same request."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.sagemaker.planning import FACTS, problems, request
from tests.importers.shapes import FOLDER, imported, job_of, left_of

from windlass.engines.sagemaker.plan import plan
from windlass.errors import JobFileError
from windlass.importers.convert import import_text
from windlass.spec.parse import parse_targets
from windlass.spec.targets import SageMakerTarget

NAMES = ("sagemaker-toolkit", "sagemaker-trainer")
SAME = ("RoleArn", "StoppingCondition", "EnableManagedSpotTraining", "EnableInterContainerTrafficEncryption")


def target_of(text: str) -> SageMakerTarget:
    found = parse_targets(text)["aws"]
    assert isinstance(found, SageMakerTarget)
    return found


def channels(body: Any) -> dict[str, tuple[str, str]]:
    """Returns address and mode of each data set of a request."""
    own = ("code", "sm_drivers", "windlass", "windlass-code")
    return {
        one["ChannelName"].lower().replace("_", "-"): (
            one["DataSource"]["S3DataSource"]["S3Uri"],
            one.get("InputMode", "File"),
        )
        for one in body["InputDataConfig"]
        if one["ChannelName"] not in own
    }


@pytest.mark.parametrize("name", NAMES)
def test_plan_of_an_imported_job_requests_the_same_resources(name: str) -> None:
    path = FOLDER / f"{name}.json"
    had, made = json.loads(path.read_text()), imported(path)
    target = target_of(made.target)
    body = request(plan(made.job, target, replace(FACTS, role=target.role), "again-7f3k2"))
    assert problems(body) == ""
    assert {key: body[key] for key in SAME if key in had} == {key: had[key] for key in SAME if key in had}
    assert body["AlgorithmSpecification"]["TrainingImage"] == had["AlgorithmSpecification"]["TrainingImage"]
    assert body["ResourceConfig"] == had["ResourceConfig"]
    assert body.get("VpcConfig") == had.get("VpcConfig")
    assert channels(body) == channels(had)
    assert {"Key": "team", "Value": "vision"} in body["Tags"] or "Tags" not in had


@pytest.mark.parametrize("subnets", ["subnet-1", True, {"a": "b"}])
def test_subnets_of_the_wrong_type_are_reported_and_ignored(subnets: Any) -> None:
    body = json.loads((FOLDER / "sagemaker-trainer.json").read_text())
    body["VpcConfig"] = {"Subnets": subnets, "SecurityGroupIds": ["sg-1"]}
    made = import_text(json.dumps(body), "saved.json")
    assert target_of(made.target).subnets == ()
    assert "VpcConfig" in {one.field for one in made.actionable}


def test_toolkit_hyperparameters_become_script_arguments() -> None:
    job = job_of("sagemaker-toolkit")
    assert job["run"] == "cifar10-distributed.py --backend gloo --epochs 3 --lr 0.01 --layers '[1, 2]'"
    assert (job["nodes"], job["procs_per_node"]) == (2, "auto")
    assert (job["timeout"], job["sagemaker"]) == (7200, {"spot": True, "max_wait": 10800})
    left = left_of("sagemaker-toolkit")
    code = left["HyperParameters.sagemaker_submit_directory"]
    assert code.startswith(
        "aws s3 cp s3://sagemaker-eu-west-1-123456789012/training-scripts/sourcedir.tar.gz - | tar xz"
    )
    assert "AlgorithmSpecification.TrainingInputMode" not in left
    assert "InputDataConfig[1].DataSource.S3DataSource.S3DataDistributionType" in left
    assert "InputDataConfig[0].DataSource.S3DataSource.S3DataDistributionType" not in left


def test_sdk_driver_report_says_where_script_and_launcher_are_named() -> None:
    left = left_of("sagemaker-trainer")
    assert "aws s3 cp s3://bucket/llama/input/sm_drivers/sourcecode.json -" in left["HyperParameters"]
    assert "aws s3 sync s3://bucket/llama/input/code ." in left["InputDataConfig[0]"]
    assert "HyperParameters.hf_token" in left
    assert job_of("sagemaker-trainer")["run"] == "train.py --lr 0.1 --name tiny"


def test_container_commands_are_read_by_the_command_line_parser() -> None:
    job = job_of("sagemaker-image")
    assert (job["run"], job["procs_per_node"]) == ("/src/train.py --epochs 2", 4)
    left = left_of("sagemaker-image")
    assert {"HyperParameters.alpha", "InputDataConfig[0]", "region"} <= left.keys()
    assert job["sagemaker"]["training_plan"].endswith("training-plan/one")


def test_channels_without_an_input_mode_use_the_mode_of_the_job() -> None:
    body = json.loads((FOLDER / "sagemaker-toolkit.json").read_text())
    body["AlgorithmSpecification"]["TrainingInputMode"] = "FastFile"
    body["InputDataConfig"][1]["InputMode"] = "File"
    made = import_text(json.dumps(body), "saved.json")
    assert [(one.name, one.via) for one in made.job.data] == [("train", "mount"), ("validation", "copy")]
    assert "AlgorithmSpecification.TrainingInputMode" not in {one.field for one in made.unmapped}
    body["AlgorithmSpecification"]["TrainingInputMode"] = "Pipe"
    lost = {one.field for one in import_text(json.dumps(body), "saved.json").actionable}
    assert "AlgorithmSpecification.TrainingInputMode" in lost


def test_a_description_reads_the_same_from_the_aws_cli_and_from_boto3() -> None:
    """Version 1 of the CLI prints times as numbers, version 2 as text; boto3 adds ResponseMetadata."""
    described = json.loads((FOLDER / "sagemaker-toolkit.json").read_text())
    numbers = described | {"CreationTime": 1714644674.123, "LastModifiedTime": 1714645000.0}
    of_boto3 = described | {
        "CreationTime": "2024-05-02 10:11:14.123000+00:00",
        "ResponseMetadata": {"RetryAttempts": 0},
    }
    texts = [json.dumps(one, indent=4) for one in (described, numbers, of_boto3)]
    made = [import_text(text, "saved.json") for text in texts]
    assert made[0].text == made[1].text == made[2].text
    assert made[0].target == made[1].target == made[2].target


@pytest.mark.parametrize(
    "text",
    [
        "from sagemaker.pytorch import PyTorch\nPyTorch(entry_point='train.py').fit()",
        "import sagemaker as sm",
        "import boto3\nboto3.client('sagemaker').create_training_job(**request)",
    ],
)
def test_sdk_script_is_refused_with_the_format_to_import(text: str) -> None:
    with pytest.raises(JobFileError, match="import does not read Python") as caught:
        import_text(text, "launch.py")
    [problem] = caught.value.problems
    assert "aws sagemaker describe-training-job --training-job-name NAME > job.json" in problem.hint
    assert "CreateTrainingJob request" in problem.hint


def test_other_scripts_are_referred_to_init() -> None:
    with pytest.raises(JobFileError, match="import does not read Python") as caught:
        import_text("import torch\n", "train.py")
    assert "windlass init train.py" in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"AlgorithmSpecification": {"TrainingImage": "xgboost"}}, "starts the image's own program"),
        ({"InputDataConfig": [{"ChannelName": "windlass"}]}, "was created by Windlass"),
        (
            {"InputDataConfig": [{"ChannelName": "windlass"}], "Environment": {"WINDLASS_RUN": "digits-7f3k2"}},
            "windlass rerun digits-7f3k2",
        ),
    ],
)
def test_job_without_a_command_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(JobFileError, match=message):
        import_text(json.dumps({"TrainingJobName": "a", **changed}), "job.json")
