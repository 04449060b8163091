"""Builds the names and requests of a deployment on SageMaker. Pure: the same request gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from windlass.engines.deployments import NAME_PATTERN, DeploymentRequest
from windlass.engines.sagemaker import layout
from windlass.engines.sagemaker.aws import partition
from windlass.spec.targets import SageMakerTarget

Body = Mapping[str, Any]
PREFIX: Final = "windlass-"
"""Prefix of the names of all objects of deployments."""
DIGEST: Final = r"[0-9a-f]{12}"
DIGEST_DIGITS: Final = 12
PART_NAME: Final = re.compile(rf"{PREFIX}(?P<name>{NAME_PATTERN})-(?P<digest>{DIGEST})")
"""Names of models and endpoint configurations."""
VARIANT: Final = "model"
"""Name of the only variant of each endpoint."""
HEALTH_SECONDS: Final = 480
"""Seconds in which a container must pass its health check after its start: eight minutes, as in AWS's documentation."""
DOWNLOAD_SECONDS: Final = 1200
NAME_TAG, END_TAG = "windlass:deployment", "windlass:ends-at"
NEVER: Final = "never"
LAST: Final = ("config", "model", "archive")
"""Schedules that delete what an endpoint uses. An endpoint that is still being created needs these objects: without
them, SageMaker reports its failure only after an hour."""
SCHEDULES: Final = ("endpoint", *LAST)
LATER_SECONDS: Final = 900.0
"""Seconds between the deletion of the endpoint and the deletion of what it uses."""
RETRY_SECONDS: Final = 86_400
"""Seconds for which EventBridge Scheduler repeats a refused deletion: a day, the maximum."""
MAX_RETRIES: Final = 185
SERVERLESS_GB: Final = 6
"""Maximum memory of a serverless endpoint in GiB."""
MAX_CONCURRENCY: Final = 5
"""Concurrent requests of a serverless endpoint. The quota of a new account is ten for all its endpoints."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the objects of one deployment."""

    deployment: str
    digest: str
    """First digits of the digest of the request."""

    @property
    def endpoint(self) -> str:
        """Name of the endpoint. It has no digest, so that an account has at most one endpoint of a name."""
        return endpoint_name(self.deployment)

    @property
    def part(self) -> str:
        """Name of both the model and the endpoint configuration."""
        return f"{PREFIX}{self.deployment}-{self.digest}"

    def archive(self, storage: str) -> str:
        """Returns the address of the folder with the archive of the model."""
        return f"{archives(storage, self.deployment)}{self.digest}/"


def endpoint_name(deployment: str) -> str:
    """Returns the name of a deployment's endpoint."""
    return f"{PREFIX}{deployment}"


def schedule_name(deployment: str, kind: str) -> str:
    """Returns the name of the schedule that deletes one object of a deployment; `kind` is one of SCHEDULES."""
    return f"{PREFIX}{deployment}.{kind}"


def archives(storage: str, deployment: str = "") -> str:
    """Returns the address of the folder with all archives of a deployment, or of all deployments."""
    return f"{storage.rstrip('/')}/deployments/{deployment}{'/' if deployment else ''}"


@dataclass(frozen=True, slots=True)
class Requests:
    """All requests of a deployment."""

    names: Names
    model: Body
    """Body of CreateModel."""
    config: Body
    """Body of CreateEndpointConfig."""
    endpoint: Body
    """Body of CreateEndpoint."""
    schedules: tuple[Body, ...]
    """Bodies of CreateSchedule; empty for a deployment that never ends."""
    archive: str
    """Address of the folder with the archive of the model."""


def requests(
    request: DeploymentRequest, target: SageMakerTarget, *, role: str, schedule_role: str, image: str, model_digest: str
) -> Requests:
    """Returns the requests of a deployment. `role` and `schedule_role` are ARNs; `model_digest` is that of the files.

    The names depend on everything but the end of the deployment, which a repeated deploy may change. `storage:` of the
    target is a part: the schedules of a deployment delete the archive at one address.
    """
    container: dict[str, Any] = {"Image": image, "Environment": _environment(target)}
    model = {
        "ExecutionRoleArn": role,
        "PrimaryContainer": container,
        "EnableNetworkIsolation": target.network_isolation,
        **(
            {"VpcConfig": {"Subnets": list(target.subnets), "SecurityGroupIds": list(target.security_groups)}}
            if target.subnets
            else {}
        ),
    }
    variant = _variant(request)
    key = {} if target.kms_key is None or request.is_serverless else {"KmsKeyId": target.kms_key}
    folder = archives(target.storage, request.name)
    said = json.dumps([folder, request.owner, request.run_id, model_digest, model, variant, key], sort_keys=True)
    names = Names(request.name, hashlib.sha256(said.encode()).hexdigest()[:DIGEST_DIGITS])
    archive = names.archive(target.storage)
    container["ModelDataUrl"] = f"{archive}{layout.MODEL_ARCHIVE}"
    tags = list(_tags(request, target))
    return Requests(
        names,
        {"ModelName": names.part, **model, "Tags": tags},
        {
            "EndpointConfigName": names.part,
            "ProductionVariants": [{"ModelName": names.part, **variant}],
            **key,
            "Tags": tags,
        },
        {"EndpointName": names.endpoint, "EndpointConfigName": names.part, "Tags": tags},
        () if request.ends_at is None else schedules(names, target.region, archive, schedule_role, request.ends_at),
        archive,
    )


def schedules(names: Names, region: str, archive: str, role: str, ends_at: float) -> tuple[Body, ...]:
    """Returns the one-time schedules that delete a deployment at `ends_at`, in Unix seconds. `archive` is the address
    of the folder with its archive.
    """
    bucket, _, key = f"{archive}{layout.MODEL_ARCHIVE}".removeprefix("s3://").partition("/")
    calls = {
        "endpoint": ("sagemaker:deleteEndpoint", {"EndpointName": names.endpoint}),
        "config": ("sagemaker:deleteEndpointConfig", {"EndpointConfigName": names.part}),
        "model": ("sagemaker:deleteModel", {"ModelName": names.part}),
        "archive": ("s3:deleteObject", {"Bucket": bucket, "Key": key}),
    }
    return tuple(
        {
            "Name": schedule_name(names.deployment, kind),
            "Description": names.digest,
            "ScheduleExpression": f"at({_moment(ends_at + (LATER_SECONDS if kind in LAST else 0.0))})",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "ActionAfterCompletion": "DELETE",
            "Target": {
                "Arn": f"arn:{partition(region)}:scheduler:::aws-sdk:{call}",
                "RoleArn": role,
                "Input": json.dumps(given),
                "RetryPolicy": {"MaximumEventAgeInSeconds": RETRY_SECONDS, "MaximumRetryAttempts": MAX_RETRIES},
            },
        }
        for kind, (call, given) in calls.items()
    )


def archive_of(model: Body) -> str:
    """Returns the address of the folder with the archive of a model; empty if the model has none."""
    address = str(model.get("PrimaryContainer", {}).get("ModelDataUrl", ""))
    return address.removesuffix(layout.MODEL_ARCHIVE)


def archive_deleted_by(schedule: Body) -> str:
    """Returns the address of the folder whose archive a schedule deletes; empty if it deletes none."""
    try:
        given = json.loads(schedule["Target"]["Input"])
        return f"s3://{given['Bucket']}/{given['Key']}".removesuffix(layout.MODEL_ARCHIVE)
    except (KeyError, TypeError, ValueError):  # of another kind, or edited by a user
        return ""


def scheduled_at(schedule: Body) -> float | None:
    """Returns the time of a one-time schedule in Unix seconds; None if a user has edited it to repeat, or into a time
    zone that this machine does not know.
    """
    try:
        name = schedule.get("ScheduleExpressionTimezone", "UTC")
        zone = UTC if name == "UTC" else ZoneInfo(name)  # small container images have no time zones
        at = datetime.strptime(schedule["ScheduleExpression"], "at(%Y-%m-%dT%H:%M:%S)")
    except (ValueError, ZoneInfoNotFoundError):
        return None
    return at.replace(tzinfo=zone).timestamp()


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(math.ceil(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _variant(request: DeploymentRequest) -> dict[str, Any]:
    if request.is_serverless:
        memory = 1024 * math.ceil(request.memory_bytes / (1 << 30))
        serverless = {"MemorySizeInMB": memory, "MaxConcurrency": MAX_CONCURRENCY}
        return {"VariantName": VARIANT, "ServerlessConfig": serverless}
    return {
        "VariantName": VARIANT,
        "InstanceType": request.instance,
        "InitialInstanceCount": request.replicas,
        "ContainerStartupHealthCheckTimeoutInSeconds": HEALTH_SECONDS,
        "ModelDataDownloadTimeoutInSeconds": DOWNLOAD_SECONDS,
    }


def _environment(target: SageMakerTarget) -> dict[str, str]:
    """Returns the variables that tell AWS's inference images where the code is, and the variables of the target."""
    return {
        "SAGEMAKER_PROGRAM": "inference.py",
        "SAGEMAKER_SUBMIT_DIRECTORY": "/opt/ml/model/code",
        "SAGEMAKER_CONTAINER_LOG_LEVEL": "20",
        "SAGEMAKER_REGION": target.region,
        **target.env,
    }


def _tags(request: DeploymentRequest, target: SageMakerTarget) -> Iterator[dict[str, str]]:
    own = {
        NAME_TAG: request.name,
        layout.USER_TAG: request.owner,
        **({layout.RUN_TAG: request.run_id} if request.run_id else {}),
        **end_tag(request.ends_at),
    }
    for name, value in {**target.tags, **own}.items():
        yield {"Key": name, "Value": value}


def end_tag(ends_at: float | None) -> dict[str, str]:
    """Returns the tag with the end of a deployment."""
    return {END_TAG: NEVER if ends_at is None else f"{_moment(ends_at)}Z"}
