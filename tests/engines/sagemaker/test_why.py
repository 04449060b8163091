"""Verdicts of `why` on runs on SageMaker, from messages of the service. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.sagemaker.planning import plan_here, planned, request

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Verdict
from windlass.engines.sagemaker.diagnose import ObservedJob, rules_on
from windlass.engines.sagemaker.observe import image_of
from windlass.runs.events import RootCause
from windlass.runs.phase import Phase
from windlass.runs.record import Status, Times
from windlass.spec.job import Job

ROLE = "arn:aws:iam::123456789012:role/training"
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nRuntimeError: boom\n'
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"


def verdict(
    description: dict[str, Any],
    cause: dict[str, Any] | None,
    phase: Phase = Phase.FAILED,
    region: str = "us-east-1",
    **job: Any,
) -> Verdict:
    made = planned(**job)
    status = Status(
        id="digits-7f3k2",
        name="digits",
        target="aws",
        phase=phase,
        times=Times(1.0, 1.0),
        output_dir="/out",
        cause=None if cause is None else RootCause.from_json(cause),
    )
    seen = ObservedJob(request(made), "aws", region, description)
    return diagnose(Observations(status, made, rules=rules_on(seen))).verdict


REFUSED = [
    ("The account-level service limit 'ml.g5.xlarge for training job usage' is 0 Instances, with current utilization "
     "of 0 Instances and a request delta of 2 Instances.", "quota-exceeded", "ml.g5.xlarge for training"),
    ("Could not assume role arn:aws:iam::123456789012:role/training. Please ensure that the role exists and allows "
     "principal 'sagemaker.amazonaws.com' to assume the role.", "role-not-assumed", ROLE),
    ("User: arn:aws:iam::123456789012:user/ada is not authorized to perform: iam:PassRole on resource: " + ROLE,
     "rights-missing", f"user/ada may not give SageMaker the role {ROLE}"),
    ("User: arn:aws:iam::123456789012:user/ada is not authorized to perform: sagemaker:CreateTrainingJob on resource: "
     "arn:aws:sagemaker:us-east-1:123456789012:training-job/digits", "rights-missing", "sagemaker:CreateTrainingJob"),
    ("Cannot find repository: train in registry ID: 123456789012.", "image-not-found", IMAGE),
    ("Access denied for repository: train in registry ID: 123456789012.", "image-auth", IMAGE),
    ('No S3 objects found under S3 URL "s3://bucket/none/" given in input data source.', "data-missing",
     "s3://bucket/none/"),
    ("Training plan arn:aws:sagemaker:us-east-1:123456789012:training-plan/p is not Active.",
     "training-plan-not-active", "no capacity for this job now"),
    ("1 validation error detected: Value at 'tags' failed to satisfy constraint", "sagemaker-refused", "'tags' failed"),
]  # fmt: skip
FAILED = [
    ("CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance "
     "type.", "no-capacity", "1 × ml.g5.xlarge in us-east-1"),
    ("ClientError: SageMaker was unable to assume the role 'arn:aws:iam::123456789012:role/training'",
     "role-not-assumed", ROLE),
    ("ClientError: Cannot pull algorithm container. Either the image does not exist or its permissions are incorrect.",
     "image-pull-failed", IMAGE),
    ("ClientError: Data download failed:Unable to download object s3://bucket/x (AccessDenied: Access Denied)",
     "s3-denied", "may not read"),
    ("ClientError: Data download failed: the secret access key does not fit: check your key and signing method",
     "s3-denied", "may not read"),
    ("ClientError: Data download failed:NoSuchKey (404): The specified key does not exist", "data-missing", "NoSuch"),
    ("ClientError: Data download failed: write /opt/ml/input/data/x: no space left on device", "disk-full", "volume"),
    ("ClientError: Artifact upload failed:Error 1: AccessDenied", "s3-denied", "may not write"),
    ("ClientError: Artifact upload failed: the bucket does not exist", "outputs-not-uploaded", "the bucket"),
    ("InternalServerError: We encountered an internal error. Please try again.", "sagemaker-internal", "internal"),
    ("something that no table has", "sagemaker-failed", "something that no table has"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "code", "part"), REFUSED)
def test_refused_job_has_verdict(message: str, code: str, part: str) -> None:
    found = verdict({}, {"summary": f"could not start: CreateTrainingJob: {message} (ValidationException)"})
    assert (found.code, part in found.summary, found.fix != "") == (code, True, True), found


@pytest.mark.parametrize(("reason", "code", "part"), FAILED)
def test_job_failed_by_service_has_verdict(reason: str, code: str, part: str) -> None:
    description = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": reason}
    found = verdict(description, {"summary": "node 0 was lost", "node_lost": 0})
    assert (found.code, part in found.summary) == (code, True), found
    assert found.evidence[0] == reason


def test_no_capacity_differs_from_exhausted_training_plan() -> None:
    plan = "CapacityError: the training plan has expired"
    description = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": plan}
    assert verdict(description, {"summary": "", "node_lost": 0}).code == "training-plan-not-active"


@pytest.mark.parametrize(
    ("step", "message", "code"),
    [
        ("Starting", "Insufficient capacity error from EC2 while launching instances, retrying!", "no-capacity-yet"),
        ("Pending", "", "waiting-for-capacity"),
        ("Starting", "Preparing the instances for training", "none"),
    ],
)
def test_job_without_instances_yet_has_verdict(step: str, message: str, code: str) -> None:
    steps = [{"Status": step, "StatusMessage": message}]
    description = {"TrainingJobStatus": "InProgress", "SecondaryStatus": step, "SecondaryStatusTransitions": steps}
    assert verdict(description, None, Phase.PROVISIONING).code == code


def test_verdict_on_killed_container_suggests_more_memory() -> None:
    reason = "AlgorithmError: , exit code: 137"
    description = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": reason}
    found = verdict(description, {"summary": "node 0 was lost", "node_lost": 0})
    assert (found.code, found.evidence) == ("host-killed", (reason,))


def test_image_without_interpreter_has_verdict() -> None:
    description = {"TrainingJobStatus": "Failed", "FailureReason": "AlgorithmError: , exit code: 127"}
    found = verdict(description, {"summary": "AlgorithmError: , exit code: 127", "node_lost": 0})
    assert (found.code, "no program python3" in found.summary) == ("interpreter-missing", True)
    ended = {"summary": "exit code 127", "node_lost": 0, "rank": 0, "exit_code": 127}
    assert verdict(description, ended).code != "interpreter-missing"


@pytest.mark.parametrize(("region", "words"), [("us-east-1", " --region us-east-1"), ("", "")])
def test_verdict_on_unreadable_secret_gives_command(region: str, words: str) -> None:
    reason = "AlgorithmError: secret tokens: there is none of that name, exit code: 1"
    description = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": reason}
    found = verdict(description, {"summary": "node 0 was lost", "node_lost": 0}, region=region)
    fix = f"aws secretsmanager describe-secret --secret-id tokens{words}"
    assert (found.code, found.fix) == ("secret-missing", fix)


@pytest.mark.parametrize(
    ("second", "code"),
    [
        ("MaxWaitTimeExceeded", "spot-wait-over"),
        ("MaxRuntimeExceeded", "timeout"),
        ("Interrupted", "spot-interrupted"),
        ("Stopped", "stopped-outside"),
    ],
)
def test_job_that_was_ended_early_has_verdict(second: str, code: str) -> None:
    steps = [{"Status": second, "StatusMessage": "as it was told"}]
    description = {"TrainingJobStatus": "Stopped", "SecondaryStatus": second, "SecondaryStatusTransitions": steps}
    found = verdict(description, {"summary": "node 0 was lost", "node_lost": 0}, sagemaker={"spot": True})
    assert found.code == code, found


def test_failed_rank_remains_root_cause() -> None:
    reason = "AlgorithmError: RuntimeError: boom, exit code: 1"
    description = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": reason}
    cause = {"summary": "RuntimeError: boom", "rank": 0, "exit_code": 1, "traceback": RAISED}
    assert verdict(description, cause).code == "exception"


def test_advice_for_local_hosts_does_not_mention_image(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    here = plan_here(Job(name="digits", run="train.py"), tmp_path, tmp_path / "home", "digits-7f3k2")
    assert (image_of(request(here)), image_of(request(planned()))) == ("", IMAGE)
