"""The KMS key of a cluster's bucket: finds it, and makes a key usable again that waits for its deletion."""

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
    """As KMS has it: `Enabled`, `PendingDeletion`."""
    cluster: str
    """Value of the tag `windlass.dev/cluster`; empty for a key that Windlass did not make."""


def key_of(aws: Aws, bucket: str) -> BucketKey | None:
    """The key of a bucket's default encryption; None where it has none. Raises NotThere for a key that is deleted,
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
    """Id, ARN or alias of the key by which S3 encrypts new objects of a bucket; empty for keys of S3's own."""
    try:
        with aws_errors(f"read the encryption of s3://{bucket}", action="s3:GetEncryptionConfiguration"):
            found = aws.client("s3").get_bucket_encryption(Bucket=bucket)
    except NotThere:
        return ""
    rules = found["ServerSideEncryptionConfiguration"]["Rules"]
    return next((key for one in rules if (key := key_in(one))), "")


def key_in(rule: dict[str, dict[str, str]]) -> str:
    """The key that a rule of a bucket's encryption names; empty where it names none."""
    return str((rule.get("ApplyServerSideEncryptionByDefault") or {}).get("KMSMasterKeyID") or "")


def restore(aws: Aws, key: BucketKey) -> None:
    """Cancel the pending deletion of a key, and enable it: cancelling leaves it disabled. Raises AwsError."""
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
