"""Keeps a cluster's bucket and its KMS key when the cluster is removed; the next `up` adopts the key again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from windlass.clusters.aws import NotThere, aws_errors
from windlass.clusters.find import OnEvent, StageStarted, Warned
from windlass.clusters.storage import bucket_key
from windlass.clusters.storage.bucket import ADDRESS, Bucket
from windlass.clusters.storage.bucket_key import ALIAS, KEY
from windlass.errors import UsageError

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.terraform import Terraform
    from windlass.clusters.terraform.state import StateResource

PRIVATE: Final = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
"""Settings of a public access block."""


def keep_or_empty(
    terraform: Terraform, aws: Aws, on_event: OnEvent, bucket: Bucket | None, *, is_to_delete: bool
) -> bool:
    """Prepares the bucket for the destroy: keeps it, or empties it with `is_to_delete`.

    A bucket whose tag names another owner is always kept, even if Terraform created it. Returns whether the state was
    changed. Raises AwsError, TerraformError.
    """
    others = bucket.name if bucket is not None and not bucket.is_managed else ""
    if is_to_delete and others:
        on_event(StageStarted(f"leaving s3://{others}, which does not belong to this cluster"))
    if is_to_delete and not others:
        return allow_deletion(terraform, on_event, "aws_s3_bucket")
    return keep_bucket(terraform, aws, on_event, others=others)


def keep_bucket(terraform: Terraform, aws: Aws, on_event: OnEvent, *, others: str = "") -> bool:
    """Removes a bucket with objects from the state, with its settings and KMS key, so that the destroy keeps results.

    `others` is the name of a bucket that is kept even if it is empty. Returns whether the state was changed. Raises
    AwsError, TerraformError.
    """
    state = [one for one in terraform.state() if one.mode == "managed"]
    for bucket in (one for one in state if one.type == "aws_s3_bucket"):
        try:
            with aws_errors(f"list {bucket.id}", action="s3:ListBucketVersions"):
                versions = aws.client("s3").list_object_versions(Bucket=bucket.id, MaxKeys=1)
        except NotThere:
            continue
        has_objects = bool(versions.get("Versions") or versions.get("DeleteMarkers"))
        if has_objects or bucket.id == others:
            own_key = [one.address for one in state if _block(one.address) in (KEY, ALIAS)]
            if bucket.id != others:
                _restore_settings(bucket.id, state, aws)
            if own_key:
                usable_key(terraform.folder.name, bucket.id, aws, on_event)
            kept = [*(one.address for one in state if one.type.startswith("aws_s3_bucket")), *own_key]
            words = f"{', which has objects,' * has_objects}{' and its KMS key' * bool(own_key)}"
            on_event(StageStarted(f"keeping s3://{bucket.id}{words}"))
            terraform.forget(kept)
            return True
    return False


def _restore_settings(bucket: str, state: Sequence[StateResource], aws: Aws) -> None:
    """Restores settings that a destroy deleted before it failed to delete the bucket: the public access block, and the
    default encryption, by which the next `up` and the audit recognize the key of the objects. Raises AwsError.
    """
    s3 = aws.client("s3")
    key = next((one.values["arn"] for one in state if _block(one.address) == KEY), "")
    if key and not bucket_key.default_key(aws, bucket):
        default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
        rule = {"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": True}
        with aws_errors(f"encrypt s3://{bucket}", action="s3:PutEncryptionConfiguration"):
            s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    if not any(one.type == "aws_s3_bucket_public_access_block" for one in state):
        with aws_errors(f"block public access to s3://{bucket}", action="s3:PutBucketPublicAccessBlock"):
            s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=dict.fromkeys(PRIVATE, True))


def allow_deletion(terraform: Terraform, on_event: OnEvent, type: str) -> bool:
    """Allows the destroy to delete resources of a type with their contents: Terraform reads `force_destroy` of a bucket
    and `force_delete` of a repository from the state, so it must be applied first. Returns whether the state was
    changed.
    """
    found = [one.address for one in terraform.state() if one.type == type and one.mode == "managed"]
    if not found or (plan := terraform.plan(targets=found)).summary.is_empty:
        return False
    on_event(StageStarted(f"preparing the removal of {', '.join(found)} with all contents"))
    terraform.apply(plan)
    return True


def adoption(
    cluster: str, bucket: Bucket, state: Mapping[str, str], aws: Aws, on_event: OnEvent, *, is_dry: bool
) -> tuple[dict[str, str], list[str]]:
    """Returns kept resources that the plan must adopt, as ids by address, and notes about them.

    These are the bucket that an earlier `down` kept, and its key: with a new key, objects would need two keys. `state`
    maps addresses to ids. A pending deletion of the key is cancelled, even if the state has the key, because Terraform
    would otherwise create another one. With `is_dry` nothing is cancelled, and the key is omitted. Raises AwsError, and
    UsageError for a bucket that another key encrypts than the cluster file names.
    """
    if not (bucket.is_managed and bucket.exists):
        return {}, []
    found, notes = {}, []
    if ADDRESS not in state:
        found[ADDRESS] = bucket.name
        notes.append(f"s3://{bucket.name} was kept by an earlier cluster of this name and is adopted")
    require_same_key(cluster, bucket, aws)
    if bucket.key_arn:
        return found, notes
    if is_dry and (pending := _pending_key(cluster, bucket.name, aws)):
        return found, [*notes, f"the KMS key {pending} of s3://{bucket.name} is pending deletion: `up` cancels it"]
    key, key_at, alias_at = usable_key(cluster, bucket.name, aws, on_event), f"{KEY}[0]", f"{ALIAS}[0]"
    if key and key_at not in state and key not in state.values():
        found[key_at] = key
    alias = f"alias/windlass/{cluster}/bucket"
    if alias_at not in state and bucket_key.has_alias(aws, alias):
        found[alias_at] = alias
    return found, notes


def require_same_key(cluster: str, bucket: Bucket, aws: Aws) -> None:
    """Raises UsageError if the key of an existing bucket is neither the cluster's own nor the one in the cluster file:
    its objects stay encrypted by that key, and the roles of the cluster could not read them. Raises AwsError.
    """
    found = bucket_key.default_key(aws, bucket.name)
    if bucket.key_arn:
        is_same = found in ("", bucket.key_arn, bucket.key_arn.rpartition("/")[2])
    else:
        try:
            key = bucket_key.key_of(aws, bucket.name)
        except NotThere:  # reported when the key is used
            return
        is_same = key is None or key.cluster == cluster
    if not is_same:
        raise UsageError(
            f"s3://{bucket.name} is encrypted by {found}, and so are its objects, which roles with the key "
            f"{bucket.key_arn or 'of the cluster'} could not read",
            "name that key: encryption: {bucket: ARN}; or name another bucket: storage: {bucket: NAME}",
        )


def _pending_key(cluster: str, bucket: str, aws: Aws) -> str:
    """Returns the id of the cluster's bucket key if it is pending deletion; empty otherwise."""
    try:
        key = bucket_key.key_of(aws, bucket)
    except NotThere:
        return ""
    return key.id if key is not None and key.cluster == cluster and key.state == bucket_key.PENDING else ""


def usable_key(cluster: str, bucket: str, aws: Aws, on_event: OnEvent) -> str:
    """Returns the id of the key that encrypts a bucket, after cancelling its pending deletion; empty for a key that
    this cluster did not create.
    """
    try:
        key = bucket_key.key_of(aws, bucket)
    except NotThere as error:
        on_event(Warned(f"the KMS key of s3://{bucket} is deleted, and objects that it encrypted are lost: {error}"))
        return ""
    if key is None or key.cluster != cluster:
        return ""
    if key.state == bucket_key.PENDING:
        on_event(StageStarted(f"cancelling the deletion of the KMS key {key.id}, which encrypts s3://{bucket}"))
        bucket_key.restore(aws, key)
    return key.id


def _block(address: str) -> str:
    """Returns the address without its index: `aws_kms_key.bucket` for `aws_kms_key.bucket[0]`."""
    return address.partition("[")[0]
