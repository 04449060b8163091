"""Diagnosis rules for SageMaker: why it refused a request, and why it ended a training job.

The patterns match messages of the service that users have reported: role `aws/sagemaker-python-sdk#35` and
`astronomer/docs#1695`, quota `data-science-on-aws#200`, capacity `DIAGNijmegen/rse-grand-challenge#2631`, image
`aws/sagemaker-python-sdk#1968` and `aws/sagemaker-spark-container#158`, data `aws/amazon-sagemaker-examples#2489`,
`#4384`. A message that matches no pattern is quoted unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from windlass.diagnose.diagnose import BESIDES
from windlass.diagnose.observations import Observations, Rule
from windlass.diagnose.verdict import Advice, Verdict
from windlass.engines.sagemaker.service import DELETED, FAILED, IN_PROGRESS, STOPPED
from windlass.runs.phase import Phase

_QUOTA: Final = r"service limit (?:'([^']+)'|for (\S+)) is ([\d.]+ \w+), with current utilization of ([\d.]+)"
MESSAGES: Final = (
    # -- what CreateTrainingJob refuses, and what a job that was created ends with --
    (_QUOTA, Advice("quota-exceeded", "the account's quota {1}{2} is {3}, and {4} of it is in use",
                    "ask for more at Service Quotas (windlass check --on {target} shows the present figures), take "
                    "another instance type, or wait for other jobs to end")),
    (r"ResourceLimitExceeded", Advice("quota-exceeded", "a quota of the account is used up",
                                      "ask for more at Service Quotas, or take another instance type")),
    (r"(?i)training plan .*(?:expired|ended|not (?:in )?active|scheduled|reserved capacit|no longer)",
     Advice("training-plan-not-active", "the training plan has no capacity for this job now",
            "see its start and end: aws sagemaker list-training-plans; it needs to be Active, and to have {instance}")),
    (r"CapacityError|InsufficientInstanceCapacity|Unable to provision requested ML compute capacity",
     Advice("no-capacity", "AWS has no capacity for {count} × {instance} in {region} now",
            "windlass resume {run} tries again; restarts: {{max: 5, on: [node-loss]}} retries automatically; or take "
            "another instance type, region, or a training plan")),
    (r"(?i)(?:could not assume|unable to assume the) role '?(arn:[^\s'.]+)|perform: sts:AssumeRole on the role",
     Advice("role-not-assumed", "SageMaker may not act as role {role}",
            "let the role's trust policy name the service sagemaker.amazonaws.com; windlass check --on {target}")),
    (r"User: (\S+) is not authorized to perform: iam:PassRole",
     Advice("rights-missing", "{1} may not give SageMaker the role {role}",
            "have iam:PassRole on that role granted; windlass check --on {target} --role prints the policy")),
    (r"User: (\S+) is not authorized to perform: (\S+)",
     Advice("rights-missing", "{1} may not call {2}",
            "have it granted; windlass check --on {target} --role prints the policy")),
    (r"(?i)cannot find (?:the requested image|repository)|image .*(?:does not exist|not found)(?!.*permission)",
     Advice("image-not-found", "there is no image {image}", "correct image: in the job or in target {target}")),
    (r"(?i)access denied for repository|does not grant ecr:",
     Advice("image-auth", "the repository of {image} does not let SageMaker pull",
            "grant ecr:BatchGetImage and ecr:GetDownloadUrlForLayer to the role, and in the repository's own policy "
            "where it is of another account")),
    (r"(?i)cannot pull algorithm container|image does not exist or its permissions are incorrect",
     Advice("image-pull-failed", "SageMaker cannot pull image {image}: it does not exist, or the role may not read it",
            "windlass check --on {target} tells which")),
    (r"No S3 objects found under S3 URL \"?([^\s\"]+)",
     Advice("data-missing", "there is nothing at {1}, or the role may not list it",
            "windlass data ls {1}; the role needs s3:ListBucket and s3:GetObject there")),
    (r"(?i)(?:data download failed|artifact upload failed|checkpoint upload failed)"
     r".*?(?:no space left|insufficient disk|disk.*full|not enough (?:disk )?space)",
     Advice("disk-full", "the volume of the hosts is full", "set volume: in the target or under sagemaker:")),
    (r"(?i)data download failed.*?(?:access ?denied|403|forbidden|permission|signing method|access key)",
     Advice("s3-denied", "role {role} may not read what the job needs from S3",
            "grant s3:ListBucket and s3:GetObject (and kms:Decrypt); windlass check --on {target} --role prints the "
            "policy")),
    (r"(?i)(?:artifact|checkpoint) upload failed.*?"
     r"(?:access ?denied|403|forbidden|permission|signing method|access key)",
     Advice("s3-denied", "role {role} may not write to {storage}",
            "grant s3:PutObject (and kms:GenerateDataKey); windlass check --on {target} --role prints the policy")),
    (r"(?i)data download failed:?\s*(.*)",
     Advice("data-missing", "SageMaker could not bring the data to the hosts: {1}",
            "windlass data ls ADDRESS shows what can be read of it")),
    (r"(?i)(?:artifact|checkpoint) upload failed:?\s*(.*)",
     Advice("outputs-not-uploaded", "SageMaker could not store what the job has made: {1}",
            "see that {storage} is there, and that the role may write to it")),
    (r"InternalServerError:?\s*(.*)",
     Advice("sagemaker-internal", "SageMaker reported an internal error: {1}",
            "windlass resume {run} starts it again; restarts: {{max: 3, on: [node-loss]}} restarts it automatically")),
)  # fmt: skip
"""Patterns of messages with their advice, in which `{1}`, `{2}`, … are groups of the pattern. The first match
counts."""
NO_CAPACITY_YET: Final = "Insufficient capacity error from EC2"
"""Prefix of the status message while SageMaker keeps looking for instances (API reference,
SecondaryStatusTransition)."""


NOT_RUN: Final = ("126", "127")
"""Exit codes of a container whose program is missing or cannot be executed."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """The training job of the newest attempt, as the service last described it."""

    request: Mapping[str, Any]
    """Body of CreateTrainingJob."""
    target: str
    region: str
    """Region of AWS; empty for hosts on this machine."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """Last description of the job; empty if it was not created or the service was never reached."""
    unreachable: str = ""
    """Error message if the service does not answer; else empty."""
    model: str = ""
    """Address of the model in the store if it was not fetched."""
    why_model: str = ""

    def words(self, run: str) -> dict[str, Any]:
        """Returns the values for the placeholders in the text of an advice."""
        resources, algorithm = self.request["ResourceConfig"], self.request["AlgorithmSpecification"]
        return {
            "run": run,
            "target": self.target,
            "region": self.region,
            "role": self.request["RoleArn"],
            "image": algorithm["TrainingImage"],
            "instance": resources["InstanceType"],
            "count": str(resources["InstanceCount"]),
            "storage": self.request["OutputDataConfig"]["S3OutputPath"],
        }


def rules_on(job: ObservedJob) -> tuple[Rule, ...]:
    """Returns all rules, bound to the training job of the newest attempt. For equal scores the earlier rule wins."""
    return tuple(partial(rule, job) for rule in RULES)


def refused(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Explains why the service did not create the job."""
    message = case.cause.summary
    if case.failed and not job.description and message.startswith("could not start: "):
        yield from _explained(job, case, message.removeprefix("could not start: "), 106)


def failed(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Explains why the service ended the job, for reasons other than the failure of a container."""
    reason = str(job.description.get("FailureReason") or "")
    if job.description.get("TrainingJobStatus") != FAILED or reason.startswith("AlgorithmError"):
        return  # the worker reports the root cause
    yield from _explained(job, case, reason, 105)


def waiting(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Explains why the job has no instances yet."""
    if case.status.phase.is_terminal or job.description.get("TrainingJobStatus") != IN_PROGRESS:
        return
    last = (job.description.get("SecondaryStatusTransitions") or [{}])[-1]
    message = str(last.get("StatusMessage", ""))
    words = job.words(case.status.id)
    if message.startswith(NO_CAPACITY_YET):
        advice = Advice(
            "no-capacity-yet",
            "AWS has no capacity for {count} × {instance} in {region} yet, and SageMaker keeps asking",
            "windlass stop {run} ends the wait; take another instance type, region, or a training plan",
            100,
        )
        yield advice.verdict((message,), **words)
    elif job.description.get("SecondaryStatus") == "Pending":
        advice = Advice(
            "waiting-for-capacity",
            "the training job waits for the capacity of its training plan",
            "see the start of its training plan: aws sagemaker list-training-plans; windlass stop {run} ends the wait",
            100,
        )
        yield advice.verdict((message,) if message else (), **words)


def host_failed(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Explains a container that was killed, or that ended before its worker could report anything."""
    reason = str(job.description.get("FailureReason") or "")
    found = re.fullmatch(r"AlgorithmError: (.*?),? *exit code: (\d+)", reason, re.DOTALL)
    if found is None or case.cause.node_lost is None:
        return
    if found[2] == "137":
        yield Verdict(
            "host-killed",
            "a host of the training job was killed, and all of its ranks with it",
            None,
            (reason,),
            "most often for lack of memory: take a larger instance type, a smaller batch, or fewer DataLoader workers",
            103,
        )
    elif secret := re.fullmatch(r"secret (\S+): (.*)", found[1], re.DOTALL):
        region = f" --region {job.region}" if job.region else ""
        yield Verdict(
            "secret-missing",
            f"secret {secret[1]} cannot be read: {secret[2]}",
            None,
            (reason,),
            f"aws secretsmanager describe-secret --secret-id {secret[1]}{region}",
            104,
        )
    elif found[1]:
        yield Verdict(
            "host-failed",
            f"a host of the training job could not start: {found[1]}",
            None,
            (reason,),
            f"read its log: windlass logs {case.status.id}",
            101,
        )
    elif found[2] in NOT_RUN and case.cause.rank is None:
        program = job.request["AlgorithmSpecification"]["ContainerEntrypoint"][0]
        yield Verdict(
            "interpreter-missing",
            f"the image has no program {program} to start a host with",
            None,
            (reason,),
            "set python: to the interpreter's path in the image, or use an image that has Python",
            104,
        )


def interrupted(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Reports that the spot instances were reclaimed and the job was not started again."""
    if case.status.phase is Phase.SUCCEEDED or job.description.get("SecondaryStatus") != "Interrupted":
        return
    yield Verdict(
        "spot-interrupted",
        "AWS reclaimed the spot instances",
        None,
        _transitions(job),
        f"windlass resume {case.status.id} continues from the newest checkpoint; sagemaker: {{max_wait: …}} lets "
        "SageMaker wait for capacity",
        106,
    )


def time_is_over(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Reports that the job reached one of its own time limits."""
    second, limits = job.description.get("SecondaryStatus"), job.request["StoppingCondition"]
    if second == "MaxWaitTimeExceeded":
        yield Verdict(
            "spot-wait-over",
            "no spot capacity for the whole run was available within max_wait",
            None,
            (f"MaxWaitTimeInSeconds: {limits.get('MaxWaitTimeInSeconds')}", *_transitions(job)),
            f"windlass resume {case.status.id} continues from the newest checkpoint; set sagemaker: {{max_wait: …}} "
            "higher, or spot: false",
            107,
        )
    elif second == "MaxRuntimeExceeded" and not case.plan.policy.timeout_seconds:
        seconds = job.description.get("StoppingCondition", limits).get("MaxRuntimeInSeconds")
        yield Verdict(
            "timeout",
            f"the training job reached the {seconds} s that SageMaker gives it without timeout:",
            None,
            (f"MaxRuntimeInSeconds: {seconds}",),
            f"set timeout:; windlass resume {case.status.id} continues the run",
            107,
        )


def stopped(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Reports that the job was stopped, but not by Windlass."""
    is_stopped = job.description.get("TrainingJobStatus") == job.description.get("SecondaryStatus") == STOPPED
    if is_stopped and case.status.phase in (Phase.FAILED, Phase.LOST) and case.cause.node_lost is not None:
        yield Verdict(
            "stopped-outside",
            "the training job was stopped from outside: in the console, by the API, or by a policy",
            None,
            _transitions(job),
            f"see which user called StopTrainingJob in CloudTrail; windlass resume {case.status.id} continues the run",
            105,
        )


def deleted(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Reports that the job was deleted before a supervisor could read how it ended."""
    is_known, has_failed = "TrainingJobName" in job.description, case.status.phase in (Phase.FAILED, Phase.LOST)
    if job.description.get("TrainingJobStatus") == DELETED and is_known and has_failed:
        yield Verdict(
            "job-deleted",
            "the training job was deleted, in the console or by the API, before its end was seen",
            None,
            _transitions(job),
            f"see which user called DeleteTrainingJob in CloudTrail; windlass resume {case.status.id} continues",
            105,
        )


def model_not_fetched(job: ObservedJob, case: Observations) -> Iterator[Verdict]:
    """Reports that the model was not fetched and is in the store only."""
    if job.model and case.status.phase.is_terminal:
        yield Verdict(
            "model-away",
            f"the model was not fetched, and is in {job.model}",
            None,
            (job.why_model,),
            f"windlass cp {case.status.id}:output . fetches it; log in again first, if that is the reason",
            BESIDES,
        )


RULES: Final = (refused, failed, waiting, host_failed, interrupted, time_is_over, stopped, deleted, model_not_fetched)


def _explained(job: ObservedJob, case: Observations, message: str, score: float) -> Iterator[Verdict]:
    words = job.words(case.status.id)
    for pattern, advice in MESSAGES:
        if found := re.search(pattern, message, re.DOTALL):
            yield advice.verdict((message,), *found.groups(), score=score, **words)
            return
    yield Verdict(
        "sagemaker-refused" if not job.description else "sagemaker-failed",
        f"SageMaker {'refuses' if not job.description else 'has ended'} the training job: {message}",
        None,
        (message,),
        f"change what it names; windlass plan --on {job.target} -o request prints the request",
        score,
    )


def _transitions(job: ObservedJob) -> tuple[str, ...]:
    """Returns the last four status transitions of the job as lines of text."""
    steps = job.description.get("SecondaryStatusTransitions") or []
    return tuple(f"{one['Status']}: {one.get('StatusMessage', '')}".rstrip(": ") for one in steps[-4:])
