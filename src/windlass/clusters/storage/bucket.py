"""Finds out whether the bucket of a cluster is its own, by the tag: only then Terraform manages it. Reads only."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.aws import AccessDenied, Aws, NotThere, aws_errors, partition
from windlass.clusters.storage.bucket_key import default_key
from windlass.clusters.tags import OWNER, flat
from windlass.errors import UsageError
from windlass.spec.cluster import Cluster

ADDRESS: Final = "aws_s3_bucket.main[0]"


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bucket of a cluster, as AWS has it."""

    name: str
    exists: bool
    owner: str = ""
    """Value of the tag `windlass.dev/cluster`; empty where it has none."""
    is_managed: bool = True
    """Whether Terraform makes it and its settings: where it does not exist, or has the tag of the cluster."""
    key_arn: str = ""
    """The key of KMS that encrypts a bucket of others; empty for none, or AWS's own."""
    region: str = ""
    """Where it is, for a bucket of a cluster of the same name in another region."""

    def variables(self) -> dict[str, Any]:
        """Variables of the Terraform configuration that describe the bucket."""
        return {"bucket_managed": self.is_managed, "bucket_key_arn": self.key_arn}


def look(aws: Aws, cluster: Cluster, before: Mapping[str, Any], *, is_unfinished: bool) -> Bucket:
    """The bucket that a cluster file means. `before` are the variables of the last command, which did not end orderly
    where `is_unfinished`: a bucket that it made may not have its tag yet.

    Raises AwsError where AWS does not say whose the bucket is.
    """
    name = cluster.storage.bucket or f"windlass-{cluster.name}-{aws.identity.account_id}"
    s3 = aws.client("s3")
    try:
        with aws_errors(f"look for s3://{name}", action="s3:ListBucket"):
            region = str(s3.head_bucket(Bucket=name).get("BucketRegion") or aws.region)
    except NotThere:
        return Bucket(name, exists=False)
    except AccessDenied as error:
        hint = f"it may be of another account: name another in storage: {{bucket: …}}; or {error.hint}"
        raise AccessDenied(error.message, hint, action=error.action, code=error.code) from error
    tags: dict[str, str] = {}
    with contextlib.suppress(NotThere), aws_errors(f"read the tags of s3://{name}", action="s3:GetBucketTagging"):
        tags = flat(s3.get_bucket_tagging(Bucket=name)["TagSet"])
    owner = tags.get(OWNER, "")
    if owner == cluster.name and region != aws.region:
        return Bucket(name, True, owner, is_managed=False, region=region)
    was_being_made = is_unfinished and not tags and before.get("bucket_managed") is True
    if owner == cluster.name or (was_being_made and _is_empty(s3, name)):
        return Bucket(name, exists=True, owner=owner)
    return Bucket(name, True, owner, is_managed=False, key_arn=_key(aws, name))


def require_usable(bucket: Bucket, cluster: Cluster) -> None:
    """Raise UsageError for the bucket of a cluster of the same name in another region, and for parts of a cluster that
    would change the settings of a bucket of others.
    """
    if bucket.is_managed:
        return
    if bucket.region:
        raise UsageError(
            f"s3://{bucket.name} is of a cluster {cluster.name} in {bucket.region}, and this one is in "
            f"{cluster.region}: they would share roles too",
            "give this cluster another name",
        )
    parts = {"fsx": cluster.storage.fsx is not None, "s3_files": cluster.storage.s3_files}
    if changing := [name for name, is_asked in parts.items() if is_asked]:
        raise UsageError(
            f"storage: {', '.join(changing)} changes the notifications of s3://{bucket.name}, which is not of the "
            f"cluster {cluster.name}: {whose(bucket)}",
            f"leave out storage.bucket; or hand the bucket over: tag it {OWNER}={cluster.name}",
        )


def whose(bucket: Bucket) -> str:
    """Why a bucket is not managed."""
    return f"its tag {OWNER} is {bucket.owner}" if bucket.owner else f"it has no tag {OWNER}"


def _is_empty(s3: Any, name: str) -> bool:
    with aws_errors(f"list s3://{name}", action="s3:ListBucketVersions"):
        found = s3.list_object_versions(Bucket=name, MaxKeys=1)
    return not found.get("Versions") and not found.get("DeleteMarkers")


def _key(aws: Aws, name: str) -> str:
    """ARN of the key that encrypts a bucket; empty for none, for AWS's own, and for an alias, which no policy names."""
    key = default_key(aws, name)
    if key.startswith("arn:") or not key:
        return "" if ":alias/" in key else key
    if key.startswith("alias/"):
        return ""
    return f"arn:{partition(aws.region)}:kms:{aws.region}:{aws.identity.account_id}:key/{key}"
