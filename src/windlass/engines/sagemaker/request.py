"""Builds the body of CreateTrainingJob for an attempt of a job. Pure: the same job gives the same bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.sagemaker import layout
from windlass.engines.sagemaker.service import Request

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.sections import Data

MAX_RUNTIME: Final = 432_000
"""Seconds that a job without `timeout` may run: five days, the quota of every account."""
MAX_RETRIES: Final = 30
VOLUME_GB: Final = 30
DAY: Final = 86_400
MAX_PATTERN: Final = 500


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings of a training job that come from the target and the facts, not from the job."""

    run_id: str
    role: str
    storage: str
    """Address of Windlass's objects in the store, without a trailing slash."""
    image: str
    instance: str
    code_digest: str
    python: str
    user: str = ""
    volume_bytes: int | None = None
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    network_isolation: bool = False
    kms_key: str | None = None
    encrypt_traffic: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


def training_job(shape: Shape, job: Job) -> Request:
    """Returns the request of the first attempt."""
    options = job.sagemaker
    limit = MAX_RUNTIME if job.timeout is None else math.ceil(job.timeout)
    volume = options.volume or shape.volume_bytes
    key = {} if shape.kms_key is None else {"KmsKeyId": shape.kms_key}
    resources: dict[str, Any] = {
        "InstanceType": shape.instance,
        "InstanceCount": job.nodes.max,
        "VolumeSizeInGB": VOLUME_GB if volume is None else math.ceil(volume / (1 << 30)),
        **({} if shape.kms_key is None else {"VolumeKmsKeyId": shape.kms_key}),
    }
    if options.training_plan is not None:
        resources["TrainingPlanArn"] = options.training_plan
    if options.warm_pool is not None:
        resources["KeepAlivePeriodInSeconds"] = math.ceil(options.warm_pool)
    stopping = {"MaxRuntimeInSeconds": limit}
    if options.spot:
        stopping["MaxWaitTimeInSeconds"] = math.ceil(options.max_wait or limit + DAY)
    folder = layout.run_folder(shape.storage, shape.run_id)
    body: dict[str, Any] = {
        "TrainingJobName": layout.job_name(shape.run_id, 1),
        "RoleArn": shape.role,
        "AlgorithmSpecification": {
            "TrainingImage": shape.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [shape.python, "-I", "-S", layout.START],
            **_metrics(job),
        },
        "InputDataConfig": list(_channels(shape, job)),
        "OutputDataConfig": {"S3OutputPath": f"{folder}/output", **key},
        "ResourceConfig": resources,
        "StoppingCondition": stopping,
        "Environment": {
            layout.RUN_VARIABLE: shape.run_id,
            layout.DIGEST_VARIABLE: shape.code_digest,
            **({layout.SECRETS_VARIABLE: ",".join(job.secrets)} if job.secrets else {}),
        },
        "EnableNetworkIsolation": shape.network_isolation,
        "EnableInterContainerTrafficEncryption": shape.encrypt_traffic,
        "EnableManagedSpotTraining": options.spot,
        "Tags": list(_tags(shape, job)),
        "ProfilerConfig": {"DisableProfiler": True},
    }
    if checkpoint_folder(shape.storage, shape.run_id, job) == layout.CHECKPOINTS:
        body["CheckpointConfig"] = {"S3Uri": f"{folder}/checkpoints", "LocalPath": layout.CHECKPOINTS}
    if shape.subnets:
        body["VpcConfig"] = {"Subnets": list(shape.subnets), "SecurityGroupIds": list(shape.security_groups)}
    if options.spot:
        body["RetryStrategy"] = {"MaximumRetryAttempts": MAX_RETRIES}
    return body


def for_attempt(body: Request, run_id: str, attempt: int, seconds_left: float | None = None) -> Request:
    """Returns the request of attempt number `attempt`; `seconds_left` is the remaining time limit of the run."""
    first, folder = "/attempt-1/", f"/attempt-{attempt}/"
    channels = [
        _channel(one["ChannelName"], one["DataSource"]["S3DataSource"]["S3Uri"].removesuffix(first) + folder)
        if one["ChannelName"] == layout.OWN
        else one
        for one in body["InputDataConfig"]
    ]
    tags = [{**tag, "Value": str(attempt)} if tag["Key"] == layout.ATTEMPT_TAG else tag for tag in body["Tags"]]
    stopping = dict(body["StoppingCondition"])
    if seconds_left is not None:
        spare = stopping.get("MaxWaitTimeInSeconds", 0) - stopping["MaxRuntimeInSeconds"]
        stopping["MaxRuntimeInSeconds"] = max(1, math.ceil(seconds_left))
        if "MaxWaitTimeInSeconds" in stopping:
            stopping["MaxWaitTimeInSeconds"] = stopping["MaxRuntimeInSeconds"] + spare
    return {
        **body,
        "TrainingJobName": layout.job_name(run_id, attempt),
        "InputDataConfig": channels,
        "Tags": tags,
        "StoppingCondition": stopping,
    }


def attempt_channel(body: Mapping[str, Any]) -> str:
    """Returns the address of the channel that starts an attempt, from its request or description; empty if missing."""
    of = {str(one["ChannelName"]): one for one in body.get("InputDataConfig") or ()}
    return str(of[layout.OWN]["DataSource"]["S3DataSource"]["S3Uri"]) if layout.OWN in of else ""


def checkpoint_folder(storage: str, run_id: str, job: Job) -> str:
    """Returns the folder or address to which ranks save checkpoints.

    With one host: a folder that SageMaker synchronizes with the store. With several hosts: an address in the store,
    because hosts share no folder but all ranks must write a checkpoint to the same place.
    """
    default = layout.CHECKPOINTS
    if job.nodes.max > 1 and job.checkpoint.find is None:
        default = f"{layout.run_folder(storage, run_id)}/checkpoints".removeprefix("file://")
    return job.checkpoint.location(run_id, default)


def _channels(shape: Shape, job: Job) -> Iterator[dict[str, Any]]:
    yield _channel(layout.OWN, layout.attempt_folder(shape.storage, shape.run_id, 1))
    yield _channel(layout.CODE_CHANNEL, layout.code_folder(shape.storage, shape.code_digest))
    for data in job.data:
        if is_channel(data):
            yield _channel(data.name, data.source, "FastFile" if data.via == "mount" else "File")


def is_channel(data: Data) -> bool:
    """Whether SageMaker copies a data set to the hosts."""
    return data.is_remote and not data.is_streamed


def _channel(name: str, address: str, mode: str = "File") -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": address, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, "InputMode": mode}


def _metrics(job: Job) -> dict[str, Any]:
    """Returns the metric definitions by which CloudWatch reads the log: one for each group of the progress pattern."""
    if job.progress is None:
        return {}
    groups = re.compile(job.progress).groupindex
    found = [{"Name": name, "Regex": _only(job.progress, name)} for name in groups]
    fit = [one for one in found if len(one["Regex"]) <= MAX_PATTERN]
    return {"MetricDefinitions": fit} if fit else {}


def _only(pattern: str, group: str) -> str:
    """Returns the pattern with `group` as its only capturing group, because SageMaker reads the first one."""
    made, at, in_class = [], 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            made.append(pattern[at : at + 2])
            at += 2
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            made.append(pattern[at : at + 2])  # right after `[`, a `]` belongs to the class
            at += 2
            continue
        elif char == "(":
            named = re.match(r"\(\?P<(\w+)>", pattern[at:])
            if named is not None:
                made.append("(" if named[1] == group else "(?:")
                at += len(named[0])
                continue
            if pattern[at + 1 : at + 2] != "?":
                made.append("(?:")
                at += 1
                continue
        made.append(char)
        at += 1
    return "".join(made)


def _tags(shape: Shape, job: Job) -> Iterator[dict[str, str]]:
    own = {
        layout.RUN_TAG: shape.run_id,
        layout.JOB_TAG: job.name,
        layout.ATTEMPT_TAG: "1",
        **({layout.USER_TAG: shape.user} if shape.user else {}),
    }
    for name, value in {**shape.tags, **job.labels, **own}.items():
        yield {"Key": name, "Value": value}
