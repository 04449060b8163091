"""Finds the KMS key of a cluster's bucket, and cancels its pending deletion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from windlass.clusters.aws import Aws, NotThere, aws_errors
from windlass.clusters.tags import OWNER, flat

KEY: Final = "aws_kms_key.bucket"
ALIAS: Final = "aws_kms_alias.bucket"
PENDING: Final = "PendingDeletion"


@dataclass(frozen=True, slots=True)
class BucketKey:
    """A KMS key that encrypts new objects of a bucket."""

    id: str
    state: str
    """Key state in KMS: `Enabled`, `PendingDeletion`."""
    cluster: str
    """Value of the tag `windlass.dev/cluster`; empty for a key that Windlass did not create."""


def key_of(aws: Aws, bucket: str) -> BucketKey | None:
    """Returns the key of a bucket's default encryption; None if it has none. Raises NotThere for a deleted key,
    AwsError.
    """
    if not (named := default_key(aws, bucket)):
        return None
    kms = aws.client("kms")
    with aws_errors(f"describe the key of s3://{bucket}", action="kms:DescribeKey"):
        about = kms.describe_key(KeyId=named)["KeyMetadata"]
    with aws_errors(f"read the tags of the key of s3://{bucket}", action="kms:ListResourceTags"):
        tags = kms.list_resource_tags(KeyId=about["KeyId"]).get("Tags")
    return BucketKey(str(about["KeyId"]), str(about["KeyState"]), flat(tags).get(OWNER, ""))


def default_key(aws: Aws, bucket: str) -> str:
    """Returns the id, ARN or alias of the key with which S3 encrypts new objects of a bucket; empty for S3's
    own keys.
    """
    try:
        with aws_errors(f"read the encryption of s3://{bucket}", action="s3:GetEncryptionConfiguration"):
            found = aws.client("s3").get_bucket_encryption(Bucket=bucket)
    except NotThere:
        return ""
    rules = found["ServerSideEncryptionConfiguration"]["Rules"]
    return next((key for one in rules if (key := key_in(one))), "")


def key_in(rule: dict[str, dict[str, str]]) -> str:
    """Returns the key in an encryption rule of a bucket; empty if it has none."""
    return str((rule.get("ApplyServerSideEncryptionByDefault") or {}).get("KMSMasterKeyID") or "")


def restore(aws: Aws, key: BucketKey) -> None:
    """Cancels the pending deletion of a key, and enables it: cancelling leaves it disabled. Raises AwsError."""
    kms = aws.client("kms")
    with aws_errors(f"cancel the deletion of the key {key.id}", action="kms:CancelKeyDeletion"):
        kms.cancel_key_deletion(KeyId=key.id)
    with aws_errors(f"enable the key {key.id}", action="kms:EnableKey"):
        kms.enable_key(KeyId=key.id)


def has_alias(aws: Aws, alias: str) -> bool:
    """Whether an alias exists. Raises AwsError."""
    with aws_errors(f"look for {alias}", action="kms:ListAliases"):
        pages = aws.client("kms").get_paginator("list_aliases").paginate()
        return any(one["AliasName"] == alias for page in pages for one in page["Aliases"])
