"""Keeps a cluster's bucket and its KMS key when the cluster is removed, and takes the key over by the next `up`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from windlass.clusters.aws import NotThere, aws_errors
from windlass.clusters.find import OnEvent, StageStarted
from windlass.clusters.storage import bucket_key
from windlass.clusters.storage.bucket import ADDRESS, Bucket
from windlass.clusters.storage.bucket_key import ALIAS, KEY

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.terraform import Terraform


def keep_or_empty(
    terraform: Terraform, aws: Aws, on_event: OnEvent, bucket: Bucket | None, *, is_to_delete: bool
) -> bool:
    """Prepare the bucket for the destroy: one that is not of the cluster, by its tag, is kept also where the user asks
    for its deletion and Terraform has made it. Returns whether the state was changed. Raises AwsError, TerraformError.
    """
    others = bucket.name if bucket is not None and not bucket.is_managed else ""
    if is_to_delete and others:
        on_event(StageStarted(f"leaving s3://{others}, which is not of this cluster"))
    if is_to_delete and not others:
        return empty_bucket(terraform, on_event)
    return keep_bucket(terraform, aws, on_event, others=others)


def keep_bucket(terraform: Terraform, aws: Aws, on_event: OnEvent, *, others: str = "") -> bool:
    """Take a bucket with objects out of the state, with its settings and the key of its objects: results are kept
    unless asked otherwise. `others` is the name of a bucket that is kept also without objects. Returns whether it did.
    Raises AwsError, TerraformError.
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
            key = usable_key(terraform.folder.name, bucket.id, aws, on_event)
            kept = [
                one.address
                for one in state
                if one.type.startswith("aws_s3_bucket")
                or _block(one.address) in (KEY, ALIAS)
                or (one.type == "aws_kms_key" and one.id == key)
                or one.values.get("target_key_id") == key
            ]
            on_event(StageStarted(f"keeping s3://{bucket.id}{', which has objects,' * has_objects} and its KMS key"))
            terraform.forget(kept)
            return True
    return False


def empty_bucket(terraform: Terraform, on_event: OnEvent) -> bool:
    """Let the destroy delete the bucket with its objects: Terraform reads that from the state, not from its files.
    Returns whether the state was changed.
    """
    buckets = [one.address for one in terraform.state() if one.type == "aws_s3_bucket" and one.mode == "managed"]
    if not buckets or (plan := terraform.plan(targets=buckets)).summary.is_empty:
        return False
    on_event(StageStarted("preparing the removal of the bucket with its objects"))
    terraform.apply(plan)
    return True


def adoption(
    cluster: str, bucket: Bucket, state: Mapping[str, str], aws: Aws, on_event: OnEvent, *, is_dry: bool
) -> tuple[dict[str, str], list[str]]:
    """What an earlier `down` has kept and the state (ids by address) lacks, by its address: the bucket, and its key,
    for under a new key objects would need both; and what to say of it.

    A pending deletion of the key is cancelled, also where the state has the key: Terraform would make another one.
    Where `is_dry`, nothing is, and the key is left out. Raises AwsError.
    """
    if not (bucket.is_managed and bucket.exists):
        return {}, []
    found, notes = {}, []
    if ADDRESS not in state:
        found[ADDRESS] = bucket.name
        notes.append(f"s3://{bucket.name} is taken over, which an earlier cluster of this name has kept")
    if is_dry and (pending := _pending_key(cluster, bucket.name, aws)):
        return found, [*notes, f"the KMS key {pending} of s3://{bucket.name} waits for its deletion: `up` cancels that"]
    key, key_at, alias_at = usable_key(cluster, bucket.name, aws, on_event), f"{KEY}[0]", f"{ALIAS}[0]"
    if key and key_at not in state and key not in state.values():
        found[key_at] = key
    alias = f"alias/windlass/{cluster}/bucket"
    if alias_at not in state and bucket_key.has_alias(aws, alias):
        found[alias_at] = alias
    return found, notes


def _pending_key(cluster: str, bucket: str, aws: Aws) -> str:
    """The id of the cluster's key of a bucket where it waits for its deletion; empty otherwise."""
    try:
        key = bucket_key.key_of(aws, bucket)
    except NotThere:
        return ""
    return key.id if key is not None and key.cluster == cluster and key.state == bucket_key.PENDING else ""


def usable_key(cluster: str, bucket: str, aws: Aws, on_event: OnEvent) -> str:
    """The id of the key that encrypts a bucket, whose pending deletion is cancelled; empty for one that this cluster
    did not make.
    """
    try:
        key = bucket_key.key_of(aws, bucket)
    except NotThere as error:
        on_event(
            StageStarted(f"the KMS key of s3://{bucket} is deleted, and objects that it encrypted are lost: {error}")
        )
        return ""
    if key is None or key.cluster != cluster:
        return ""
    if key.state == bucket_key.PENDING:
        on_event(StageStarted(f"cancelling the deletion of the KMS key {key.id}, which encrypts s3://{bucket}"))
        bucket_key.restore(aws, key)
    return key.id


def _block(address: str) -> str:
    """`aws_kms_key.bucket` of `aws_kms_key.bucket[0]`."""
    return address.partition("[")[0]
