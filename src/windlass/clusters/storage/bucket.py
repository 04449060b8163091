"""Determines from the tag whether a bucket belongs to the cluster; only then Terraform manages it. Reads only."""

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
    """The bucket of a cluster as it exists in AWS."""

    name: str
    exists: bool
    owner: str = ""
    """Value of the tag `windlass.dev/cluster`; empty without the tag."""
    is_managed: bool = True
    """Whether Terraform creates the bucket and its settings: the bucket does not exist, or has the cluster's tag."""
    key_arn: str = ""
    """Existing KMS key of the bucket: the one in the cluster file, or that of an unmanaged bucket; empty for a key that
    Terraform creates, and for no key or AWS's own."""
    region: str = ""
    """Region of the bucket, if it belongs to a cluster of the same name in another region."""

    def variables(self) -> dict[str, Any]:
        """Returns the Terraform variables that describe the bucket."""
        return {"bucket_managed": self.is_managed, "bucket_key_arn": self.key_arn}


def find_bucket(aws: Aws, cluster: Cluster, before: Mapping[str, Any], *, is_unfinished: bool) -> Bucket:
    """Looks up the bucket that a cluster file names or implies.

    `before` are the Terraform variables of the last command. If that command was killed (`is_unfinished`), a bucket
    that it created may have no tag yet. Raises AwsError if AWS does not report the owner.
    """
    name = cluster.storage.bucket or f"windlass-{cluster.name}-{aws.identity.account_id}"
    given = cluster.encryption.bucket or ""
    s3 = aws.client("s3")
    try:
        with aws_errors(f"look for s3://{name}", action="s3:ListBucket"):
            region = str(s3.head_bucket(Bucket=name).get("BucketRegion") or aws.region)
    except NotThere:
        return Bucket(name, exists=False, key_arn=given)
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
        return Bucket(name, exists=True, owner=owner, key_arn=given)
    return Bucket(name, True, owner, is_managed=False, key_arn=_key(aws, name))


def require_usable(bucket: Bucket, cluster: Cluster) -> None:
    """Raises UsageError for the bucket of a cluster of the same name in another region, and for options that would
    change the settings of an unmanaged bucket.
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
    if (key := cluster.encryption.bucket) and key != bucket.key_arn:
        raise UsageError(
            f"encryption: {{bucket: {key}}} changes the encryption of s3://{bucket.name}, which is not of the cluster "
            f"{cluster.name}: {whose(bucket)}",
            "leave it out: roles of the cluster get access to the key that encrypts the bucket",
        )


def whose(bucket: Bucket) -> str:
    """Returns why a bucket is not managed."""
    return f"its tag {OWNER} is {bucket.owner}" if bucket.owner else f"it has no tag {OWNER}"


def _is_empty(s3: Any, name: str) -> bool:
    with aws_errors(f"list s3://{name}", action="s3:ListBucketVersions"):
        found = s3.list_object_versions(Bucket=name, MaxKeys=1)
    return not found.get("Versions") and not found.get("DeleteMarkers")


def _key(aws: Aws, name: str) -> str:
    """Returns the ARN of the key that encrypts a bucket; empty for no key, AWS's own key, and an alias, which IAM
    policies cannot name.
    """
    key = default_key(aws, name)
    if key.startswith("arn:") or not key:
        return "" if ":alias/" in key else key
    if key.startswith("alias/"):
        return ""
    return f"arn:{partition(aws.region)}:kms:{aws.region}:{aws.identity.account_id}:key/{key}"
