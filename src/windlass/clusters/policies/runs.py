"""IAM permissions for runs: the role of their pods, which Terraform creates, and the users who start them.

The role repeats the policy `run` in clusters/eks/identity.tf; a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import ArnScope, Statement, actions

OBJECTS = ("AbortMultipartUpload", "DeleteObject", "GetObject", "ListMultipartUploadParts", "PutObject")


def of_pods(scope: ArnScope, key_arn: str = "") -> Iterator[Statement]:
    """Yields the statements of the pods' role; without the ARN of a key, any key tagged with the cluster is allowed."""
    yield from _bucket(scope, key_arn or scope.bucket_key)
    yield Statement(
        "Images",
        actions("ecr", "BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer"),
        _repositories(scope),
    )
    yield Statement("Login", ("ecr:GetAuthorizationToken",), why="does not support resources")


def of_person(scope: ArnScope) -> Iterator[Statement]:
    """Yields the statements for users who start runs. Their permissions inside the cluster come from an access entry
    (`access.users` of the cluster file).
    """
    yield Statement("FindCluster", ("eks:DescribeCluster",), scope.arns("eks", f"cluster/{scope.name}"))
    yield from _bucket(scope, scope.bucket_key)
    yield Statement(
        "PushImages",
        actions(
            "ecr",
            "BatchCheckLayerAvailability",
            "BatchGetImage",
            "CompleteLayerUpload",
            "DescribeImages",
            "GetDownloadUrlForLayer",
            "InitiateLayerUpload",
            "PutImage",
            "UploadLayerPart",
        ),
        _repositories(scope),
    )
    yield Statement("Login", ("ecr:GetAuthorizationToken",), why="does not support resources")


def _repositories(scope: ArnScope) -> tuple[str, ...]:
    return scope.arns("ecr", *(f"repository/{name}" for name in scope.repositories))


def _bucket(scope: ArnScope, key_arn: str) -> Iterator[Statement]:
    through = {"StringEquals": {"kms:ViaService": f"s3.{scope.region}.amazonaws.com"}}
    tagged = {"StringEquals": {**through["StringEquals"], **scope.own["StringEquals"]}}
    yield Statement(
        "Bucket", actions("s3", "GetBucketLocation", "ListBucket", "ListBucketMultipartUploads"), (scope.bucket_arn,)
    )
    yield Statement("Objects", actions("s3", *OBJECTS), (f"{scope.bucket_arn}/*",))
    yield Statement(
        "Key",
        actions("kms", "Decrypt", "GenerateDataKey"),
        (key_arn,) if key_arn else scope.arns("kms", "key/*"),
        through if key_arn else tagged,
    )
