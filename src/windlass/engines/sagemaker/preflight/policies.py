"""IAM policies with exactly the permissions that runs on SageMaker need, for the user and for the role. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.sagemaker.aws import partition
from windlass.engines.sagemaker.endpoint_requests import PREFIX
from windlass.engines.sagemaker.hosting import LOG_GROUP as ENDPOINT_LOGS
from windlass.engines.sagemaker.service import LOG_GROUP

if TYPE_CHECKING:
    from windlass.spec.targets import SageMakerTarget

SERVICE: Final = "sagemaker.amazonaws.com"
IMAGE: Final = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<name>[^:@]+)"
    r"(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?"
)
"""Pattern of image names in ECR."""
SCHEDULER: Final = "scheduler.amazonaws.com"
Statement = Mapping[str, Any]


def trust_policy(service: str = SERVICE) -> dict[str, Any]:
    """Returns the trust policy of a role that an AWS service assumes."""
    allow = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [allow]}


def user_policy(target: SageMakerTarget, account: str, role: str) -> dict[str, Any]:
    """Returns the policy for users who submit and observe runs; `role` is the ARN of the target's role."""
    aws = f"arn:{partition(target.region)}"
    jobs = f"{aws}:sagemaker:{target.region}:{account}:training-job/*"
    return _policy(
        _allow("Jobs", ["CreateTrainingJob", "DescribeTrainingJob", "StopTrainingJob", "AddTags"], jobs, "sagemaker"),
        _allow("ListOfJobs", ["Search"], "*", "sagemaker"),
        {**_allow("Role", ["PassRole"], role, "iam"), "Condition": _passed(SERVICE)},
        _allow(
            "Logs",
            ["DescribeLogStreams", "GetLogEvents"],
            f"{aws}:logs:{target.region}:{account}:log-group:{LOG_GROUP}:*",
            "logs",
        ),
        *_store(target, aws),
    )


def role_policy(target: SageMakerTarget, account: str) -> dict[str, Any]:
    """Returns the policy of the role with which training jobs run."""
    aws, there = f"arn:{partition(target.region)}", f"{target.region}:{account}"
    statements = [
        *_store(target, aws),
        _allow(
            "Logs",
            ["CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents"],
            f"{aws}:logs:{there}:log-group:{LOG_GROUP}:*",
            "logs",
        ),
        {
            **_allow("Metrics", ["PutMetricData"], "*", "cloudwatch"),
            "Condition": {"StringEquals": {"cloudwatch:namespace": LOG_GROUP}},
        },
    ]
    if target.image and (image := IMAGE.fullmatch(target.image)):
        repository = f"{aws}:ecr:{image['region']}:{image['account']}:repository/{image['name']}"
        pull = ["BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer"]
        statements += [
            _allow("Image", pull, repository, "ecr"),
            _allow("RegistryLogin", ["GetAuthorizationToken"], "*", "ecr"),
        ]
    if target.kms_key:
        statements.append(_key(target.kms_key, f"{aws}:kms:{there}"))
    if target.subnets:
        statements += _network(target, f"{aws}:ec2:{there}")
    return _policy(*statements)


def deployer_policy(target: SageMakerTarget, account: str, role: str, schedule_role: str) -> dict[str, Any]:
    """Returns the policy for users who deploy models; both roles are ARNs."""
    aws, there = f"arn:{partition(target.region)}", f"{target.region}:{account}"
    kinds = {"Model": "model", "EndpointConfig": "endpoint-config", "Endpoint": "endpoint"}
    verbs = ("Create", "Describe", "Delete")
    own = [f"{aws}:sagemaker:{there}:{kind}/{PREFIX}*" for kind in kinds.values()]
    actions = [*(f"{verb}{kind}" for kind in kinds for verb in verbs), "AddTags", "ListTags", "InvokeEndpoint"]
    changes = [f"{verb}Schedule" for verb in ("Create", "Get", "Update", "Delete")]
    schedules = f"{aws}:scheduler:{there}:schedule/default/{PREFIX}*"
    return _policy(
        {**_allow("Models", actions, "", "sagemaker"), "Resource": own},
        _allow("ListOfModels", [f"List{kind}s" for kind in kinds], "*", "sagemaker"),
        _allow("Schedules", changes, schedules, "scheduler"),
        _allow("ListOfSchedules", ["ListSchedules"], "*", "scheduler"),
        {**_allow("Role", ["PassRole"], role, "iam"), "Condition": _passed(SERVICE)},
        {**_allow("ScheduleRole", ["PassRole"], schedule_role, "iam"), "Condition": _passed(SCHEDULER)},
        _allow("Requests", ["GetMetricData"], "*", "cloudwatch"),
        _allow("EndpointLogs", ["DescribeLogStreams", "GetLogEvents"], _endpoint_logs(target, account), "logs"),
        *_store(target, aws),
    )


def model_role_policy(target: SageMakerTarget, account: str) -> dict[str, Any]:
    """Returns the policy that the target's role needs in addition to serve models in AWS's inference images."""
    aws = f"arn:{partition(target.region)}"
    images = [
        f"{aws}:ecr:{target.region}:*:repository/{name}" for name in ("pytorch-inference", "sagemaker-scikit-learn")
    ]
    pull = ["BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer"]
    written = ["CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents"]
    return _policy(
        _allow("EndpointLogs", written, _endpoint_logs(target, account), "logs"),
        {**_allow("Image", pull, "", "ecr"), "Resource": images},
        _allow("RegistryLogin", ["GetAuthorizationToken"], "*", "ecr"),
    )


def schedule_policy(target: SageMakerTarget, account: str) -> dict[str, Any]:
    """Returns the policy of the role with which EventBridge Scheduler deletes deployments."""
    aws = f"arn:{partition(target.region)}"
    own = f"{aws}:sagemaker:{target.region}:{account}:"
    kinds = {"DeleteEndpoint": "endpoint", "DeleteEndpointConfig": "endpoint-config", "DeleteModel": "model"}
    archives = f"{aws}:s3:::{target.storage.removeprefix('s3://').strip('/')}/deployments/*"
    return _policy(
        *(_allow(call, [call], f"{own}{kind}/{PREFIX}*", "sagemaker") for call, kind in kinds.items()),
        _allow("Archive", ["DeleteObject"], archives, "s3"),
    )


def _endpoint_logs(target: SageMakerTarget, account: str) -> str:
    where = f"arn:{partition(target.region)}:logs:{target.region}:{account}"
    return f"{where}:log-group:{ENDPOINT_LOGS}{PREFIX}*:*"


def _passed(service: str) -> dict[str, Any]:
    return {"StringEquals": {"iam:PassedToService": service}}


def context(target: SageMakerTarget) -> dict[str, str]:
    """Returns the condition keys that these policies use, with the values that requests of a run have."""
    prefix = target.storage.removeprefix("s3://").strip("/").partition("/")[2]
    key = target.kms_key or ""
    return {
        "iam:PassedToService": SERVICE,
        "cloudwatch:namespace": LOG_GROUP,
        "s3:prefix": f"{prefix}/runs/".lstrip("/"),
        **({"kms:RequestAlias": key[key.index("alias/") :]} if "alias/" in key else {}),
    }


def requests(policy: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each action of a policy with its resource, for a policy simulation."""
    for statement in policy["Statement"]:
        for action in statement["Action"]:
            for resource in statement["Resource"]:
                yield action, resource


def _network(target: SageMakerTarget, ec2: str) -> Iterator[dict[str, Any]]:
    """Yields the statements that SageMaker needs to attach instances to a VPC. Describe actions support no resource
    names.
    """
    places = [
        f"{ec2}:network-interface/*",
        *(f"{ec2}:subnet/{one}" for one in target.subnets),
        *(f"{ec2}:security-group/{one}" for one in target.security_groups),
    ]
    made = [
        "CreateNetworkInterface",
        "CreateNetworkInterfacePermission",
        "DeleteNetworkInterface",
        "DeleteNetworkInterfacePermission",
    ]
    seen = [
        "DescribeDhcpOptions",
        "DescribeNetworkInterfaces",
        "DescribeSecurityGroups",
        "DescribeSubnets",
        "DescribeVpcs",
    ]
    yield {**_allow("Interfaces", made, "", "ec2"), "Resource": places}
    yield _allow("Network", seen, "*", "ec2")


def _key(key: str, kms: str) -> dict[str, Any]:
    """Returns the statement for a KMS key, which may be given by its ARN, its id or an alias."""
    actions = ["CreateGrant", "Decrypt", "DescribeKey", "GenerateDataKey"]
    alias = key[key.index("alias/") :] if "alias/" in key else ""
    if not alias:
        return _allow("Key", actions, key if key.startswith("arn:") else f"{kms}:key/{key}", "kms")
    # A policy cannot name a key by its alias, so a condition limits the statement.
    allow = _allow("Key", actions, f"{kms}:key/*", "kms")
    return {**allow, "Condition": {"StringEquals": {"kms:RequestAlias": alias}}}


def _store(target: SageMakerTarget, aws: str) -> Iterator[dict[str, Any]]:
    bucket, _, prefix = target.storage.removeprefix("s3://").strip("/").partition("/")
    own = f"{aws}:s3:::{bucket}"
    actions = ["GetObject", "PutObject", "AbortMultipartUpload", "DeleteObject"]
    below = [f"{prefix}/*"] if prefix else ["*"]
    yield {**_allow("Bucket", ["ListBucket"], own, "s3"), "Condition": {"StringLike": {"s3:prefix": below}}}
    yield _allow("Objects", actions, f"{own}/{prefix}/*" if prefix else f"{own}/*", "s3")


def _allow(name: str, actions: list[str], resource: str, service: str) -> dict[str, Any]:
    named = [f"{service}:{action}" for action in actions]
    return {"Sid": name, "Effect": "Allow", "Action": named, "Resource": [resource]}


def _policy(*statements: Statement) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}
