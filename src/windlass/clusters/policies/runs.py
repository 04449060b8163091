"""IAM permissions for runs: the role of their pods, which Terraform creates, and the users who start them.

The role repeats the policy `run` in clusters/eks/identity.tf; a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import Place, Statement, actions

OBJECTS = ("AbortMultipartUpload", "DeleteObject", "GetObject", "ListMultipartUploadParts", "PutObject")


def of_pods(place: Place, key_arn: str = "") -> Iterator[Statement]:
    """Yields the statements of the pods' role; without `key_arn`, any key tagged with the cluster is allowed."""
    yield from _bucket(place, key_arn)
    yield Statement(
        "Images",
        actions("ecr", "BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer"),
        _repositories(place),
    )
    yield Statement("Login", ("ecr:GetAuthorizationToken",), why="names no resource")


def of_person(place: Place) -> Iterator[Statement]:
    """Yields the statements for users who start runs. Their permissions inside the cluster come from an access entry
    (`access.users` of the cluster file).
    """
    yield Statement("FindCluster", ("eks:DescribeCluster",), place.arns("eks", f"cluster/{place.name}"))
    yield from _bucket(place, "")
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
        _repositories(place),
    )
    yield Statement("Login", ("ecr:GetAuthorizationToken",), why="names no resource")


def _repositories(place: Place) -> tuple[str, ...]:
    return place.arns("ecr", *(f"repository/{name}" for name in place.repositories))


def _bucket(place: Place, key_arn: str) -> Iterator[Statement]:
    through = {"StringEquals": {"kms:ViaService": f"s3.{place.region}.amazonaws.com"}}
    tagged = {"StringEquals": {**through["StringEquals"], **place.own["StringEquals"]}}
    yield Statement(
        "Bucket", actions("s3", "GetBucketLocation", "ListBucket", "ListBucketMultipartUploads"), (place.bucket_arn,)
    )
    yield Statement("Objects", actions("s3", *OBJECTS), (f"{place.bucket_arn}/*",))
    yield Statement(
        "Key",
        actions("kms", "Decrypt", "GenerateDataKey"),
        (key_arn,) if key_arn else place.arns("kms", "key/*"),
        through if key_arn else tagged,
    )
