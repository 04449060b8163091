"""Finds existing buckets and file systems, and their settings and parts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windlass.clusters.recovery.search import (
    Finder,
    FoundResource,
    Lister,
    Search,
    Values,
    need,
    planned_name,
    status_of,
    tag_of,
)


def _bucket(search: Search, values: Values) -> Sequence[FoundResource]:
    name = need(values, "bucket")
    if not any(one["Name"] == name for one in search.call("s3", "list_buckets").get("Buckets") or ()):
        return []
    tags = search.call("s3", "get_bucket_tagging", Bucket=name).get("TagSet")
    return [FoundResource(name, is_ours=search.owns(tags) or (not tags and _is_empty(search, name)))]


def _is_empty(search: Search, bucket: str) -> bool:
    """Whether a bucket has no objects. The provider tags a bucket only after creating it, so a killed command may leave
    an empty bucket without tags.
    """
    found = search.call("s3", "list_object_versions", Bucket=bucket, MaxKeys=1)
    return not found.get("Versions") and not found.get("DeleteMarkers")


def _part_of_bucket(operation: str, key: str, search: Search, values: Values) -> Sequence[FoundResource]:
    bucket = need(values, "bucket")
    if not (owner := _bucket(search, values)) or not search.call("s3", operation, Bucket=bucket).get(key):
        return []
    return [FoundResource(bucket, is_ours=owner[0].is_ours)]


BUCKET_PARTS: Final = {
    "aws_s3_bucket_lifecycle_configuration": ("get_bucket_lifecycle_configuration", "Rules"),
    "aws_s3_bucket_policy": ("get_bucket_policy", "Policy"),
    "aws_s3_bucket_public_access_block": ("get_public_access_block", "PublicAccessBlockConfiguration"),
    "aws_s3_bucket_server_side_encryption_configuration": (
        "get_bucket_encryption",
        "ServerSideEncryptionConfiguration",
    ),
    "aws_s3_bucket_versioning": ("get_bucket_versioning", "Status"),
    "aws_s3_bucket_ownership_controls": ("get_bucket_ownership_controls", "OwnershipControls"),
    "aws_s3_bucket_cors_configuration": ("get_bucket_cors", "CORSRules"),
}


def _efs_all(search: Search) -> list[Any]:
    return [one for one in search.pages("efs", "describe_file_systems", "FileSystems") if search.owns(one.get("Tags"))]


def _efs(one: Mapping[str, Any]) -> FoundResource:
    word, name = str(one.get("LifeCycleState") or ""), tag_of(one.get("Tags"), "Name")
    return FoundResource(
        one["FileSystemId"], status_of(word), name, str(one.get("CreationTime") or ""), has_status=True
    )


def _file_system(search: Search, values: Values) -> Sequence[FoundResource]:
    name = planned_name(values)
    return [found for found in map(_efs, _efs_all(search)) if found.name == name]


def _file_system_policy(search: Search, values: Values) -> Sequence[FoundResource]:
    id = need(values, "file_system_id")
    return (
        [FoundResource(id)] if search.call("efs", "describe_file_system_policy", FileSystemId=id).get("Policy") else []
    )


def _mount_target(search: Search, values: Values) -> Sequence[FoundResource]:
    id, subnet = need(values, "file_system_id"), need(values, "subnet_id")
    found = search.pages("efs", "describe_mount_targets", "MountTargets", FileSystemId=id)
    return [
        FoundResource(one["MountTargetId"], status_of(str(one.get("LifeCycleState") or "")), has_status=True)
        for one in found
        if one["SubnetId"] == subnet
    ]


def _access_points(search: Search) -> Sequence[FoundResource]:
    found = search.pages("efs", "describe_access_points", "AccessPoints")
    return [
        FoundResource(
            one["AccessPointId"], status_of(str(one.get("LifeCycleState") or "")), tag_of(one.get("Tags"), "Name")
        )
        for one in found
        if search.owns(one.get("Tags"))
    ]


def _access_point(search: Search, values: Values) -> Sequence[FoundResource]:
    name = planned_name(values)
    return [one for one in _access_points(search) if one.name == name]


def _fsx_all(search: Search) -> Sequence[FoundResource]:
    found = search.pages("fsx", "describe_file_systems", "FileSystems")
    return [_fsx(one, "FileSystemId") for one in found if search.owns(one.get("Tags"))]


def _fsx(one: Mapping[str, Any], id_key: str) -> FoundResource:
    word, name = str(one.get("Lifecycle") or ""), tag_of(one.get("Tags"), "Name")
    return FoundResource(one[id_key], status_of(word), name, str(one.get("CreationTime") or ""), has_status=bool(word))


def _lustre(search: Search, values: Values) -> Sequence[FoundResource]:
    name = planned_name(values)
    return [one for one in _fsx_all(search) if one.name == name]


def _data_repository_association(search: Search, values: Values) -> Sequence[FoundResource]:
    id, path = need(values, "file_system_id"), need(values, "file_system_path")
    filters = [{"Name": "file-system-id", "Values": [id]}]
    found = search.pages("fsx", "describe_data_repository_associations", "Associations", Filters=filters)
    return [_fsx(one, "AssociationId") for one in found if one.get("FileSystemPath") == path]


FINDERS: Final[Mapping[str, Finder]] = {
    "aws_s3_bucket": _bucket,
    **{name: functools.partial(_part_of_bucket, *call) for name, call in BUCKET_PARTS.items()},
    "aws_efs_file_system": _file_system,
    "aws_efs_file_system_policy": _file_system_policy,
    "aws_efs_mount_target": _mount_target,
    "aws_efs_access_point": _access_point,
    "aws_fsx_lustre_file_system": _lustre,
    "aws_fsx_data_repository_association": _data_repository_association,
}
LISTERS: Final[Mapping[str, Lister]] = {
    "aws_efs_file_system": lambda search: [_efs(one) for one in _efs_all(search)],
    "aws_efs_access_point": _access_points,
    "aws_fsx_lustre_file_system": _fsx_all,
}
