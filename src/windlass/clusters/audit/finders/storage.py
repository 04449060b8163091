"""Finders for storage: EFS, FSx, ECR and S3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, gib, row, stored
from windlass.clusters.audit.report import FoundObject, PriceKey
from windlass.clusters.audit.scope import Owner, Scope, better
from windlass.clusters.aws import NotThere
from windlass.clusters.tags import flat


def _efs(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        tags, id = flat(one.get("Tags")), one["FileSystemId"]
        if owner := _efs_owner(calls, scope, one):
            yield row(
                EFS,
                scope,
                owner,
                id,
                name=one.get("Name") or "",
                tags=tags,
                prices=_efs_prices(one),
                detail=f"{gib(one['SizeInBytes'].get('Value')):.1f} GiB",
                remedy=command(scope, "efs delete-file-system --file-system-id", id),
            )

    return calls.each(calls.items("efs", "describe_file_systems", "FileSystems"), inspect)


def _efs_owner(calls: FinderCalls, scope: Scope, one: dict[str, Any]) -> Owner | None:
    tags = flat(one.get("Tags"))
    owner = scope.owner(tags, name=one.get("Name") or one.get("CreationToken") or "")
    if (owner and owner.is_certain) or scope.is_of_another(tags):
        return owner
    for target in calls.items("efs", "describe_mount_targets", "MountTargets", FileSystemId=one["FileSystemId"]):
        if target.get("VpcId") in scope.vpc_ids:
            return Owner(f"mount target in {target['VpcId']}, the cluster's VPC")
        vpc, subnet = target.get("VpcId", ""), target.get("SubnetId", "")
        owner = better(scope.user({}, subnets=[subnet]), owner, scope.owner({}, vpc_id=vpc))
    return owner


def _mounts(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(system: dict[str, Any]) -> Iterator[FoundObject]:
        if not (owner := _efs_owner(calls, scope, system)):
            return
        id = system["FileSystemId"]
        for one in calls.items("efs", "describe_mount_targets", "MountTargets", FileSystemId=id):
            yield row(
                MOUNT,
                scope,
                Owner(f"of {id} ({owner.reason})", owner.is_certain),
                one["MountTargetId"],
                detail=f"{one.get('AvailabilityZoneName', '')} {one.get('SubnetId', '')}",
                remedy=command(scope, "efs delete-mount-target --mount-target-id", one["MountTargetId"]),
            )

    return calls.each(calls.items("efs", "describe_file_systems", "FileSystems"), inspect)


def _efs_prices(one: dict[str, Any]) -> Iterator[PriceKey]:
    size, zone = one["SizeInBytes"], "onezone" if one.get("AvailabilityZoneId") else "standard"
    classes = {
        zone: "ValueInStandard",
        "onezone-ia" if zone == "onezone" else "ia": "ValueInIA",
        "archive": "ValueInArchive",
    }
    if not any(key in size for key in classes.values()):
        yield stored("efs", zone, gib(size.get("Value")))
    for dimension, key in classes.items():
        if size.get(key) or (key == "ValueInStandard" and key in size):
            yield stored("efs", dimension, gib(size[key]))
    if one.get("ThroughputMode") == "provisioned":
        yield PriceKey("efs", "MiBps-month", "provisioned", float(one.get("ProvisionedThroughputInMibps") or 0))


def _fsx(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("fsx", "describe_file_systems", "FileSystems"):
        tags, id = flat(one.get("Tags")), one["FileSystemId"]
        owner = scope.owner(tags, vpc_id=one.get("VpcId", ""), name=tags.get("Name", ""))
        owner = better(owner, scope.user(tags, subnets=one.get("SubnetIds") or ()))
        if owner and one.get("Lifecycle") != "DELETING":
            table, dimension = _fsx_class(one)
            yield row(
                FSX,
                scope,
                owner,
                id,
                tags=tags,
                prices=[stored(table, dimension, one.get("StorageCapacity"))],
                detail=f"{one.get('FileSystemType', '')} {dimension}, {one.get('StorageCapacity', '?')} GiB",
                remedy=command(scope, "fsx delete-file-system --file-system-id", id),
            )


def _fsx_class(one: dict[str, Any]) -> tuple[str, str]:
    """Returns the price table and the class of a file system, such as `PERSISTENT_2-250` (MB/s per TiB)."""
    if one.get("FileSystemType") != "LUSTRE":
        return "fsx-other", one.get("FileSystemType", "")
    lustre = one.get("LustreConfiguration") or {}
    each = f"-{lustre['PerUnitStorageThroughput']}" if lustre.get("PerUnitStorageThroughput") else ""
    disk = "-HDD" if one.get("StorageType") == "HDD" else ""
    return "fsx-lustre", f"{lustre.get('DeploymentType', '')}{each}{disk}"


def _backups(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    for one in calls.items("fsx", "describe_backups", "Backups"):
        tags, system = flat(one.get("Tags")), one.get("FileSystem") or {}
        theirs = flat(system.get("Tags"))
        owner = scope.owner(
            tags | {k: v for k, v in theirs.items() if k not in tags},
            vpc_id=system.get("VpcId", ""),
            name=tags.get("Name", ""),
        )
        if owner and one.get("Lifecycle") not in ("DELETED", "DELETING"):
            yield row(
                BACKUP,
                scope,
                owner,
                one["BackupId"],
                tags=tags,
                prices=[stored("fsx-backup", system.get("FileSystemType", ""), None)],
                detail=f"of {system.get('FileSystemId', '?')}, {one.get('Lifecycle', '')}",
                remedy=command(scope, "fsx delete-backup --backup-id", one["BackupId"]),
            )


def _s3_files(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    """Yields S3 Files file systems. Only the cached part of the bucket bills."""

    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        id, arn = one["fileSystemId"], one.get("bucket", "")
        tags = calls.tags("s3files", "list_tags_for_resource", "tags", resourceId=id)
        if owner := scope.owner(tags, name=one.get("name") or tags.get("Name", "")):
            yield row(
                S3_FILES,
                scope,
                owner,
                id,
                name=one.get("name", ""),
                tags=tags,
                prices=[stored("s3files", "", None)],
                detail=f"of {arn.rsplit(':', 1)[-1]}, {one.get('status', '')}",
                remedy=command(scope, "s3files delete-file-system --file-system-id", id),
            )

    return calls.each(calls.items("s3files", "list_file_systems", "fileSystems"), inspect)


def _repositories(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["repositoryName"]
        tags = calls.tags("ecr", "list_tags_for_resource", "tags", resourceArn=one["repositoryArn"])
        if owner := scope.owner(tags, name=name):
            images = list(calls.items("ecr", "describe_images", "imageDetails", repositoryName=name))
            size = gib(sum(image.get("imageSizeInBytes", 0) for image in images))
            yield row(
                REPOSITORY,
                scope,
                owner,
                name,
                tags=tags,
                prices=[stored("ecr", "", size)] if images else [],
                detail=f"{len(images)} images, {size:.1f} GiB",
                remedy=command(scope, "ecr delete-repository --force --repository-name", name),
            )

    return calls.each(calls.items("ecr", "describe_repositories", "repositories"), inspect)


def _buckets(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    def inspect(one: dict[str, Any]) -> Iterator[FoundObject]:
        name = one["Name"]
        owner, tags = bucket_owner(calls, scope, name)
        if owner:
            yield row(
                BUCKET,
                scope,
                owner,
                name,
                tags=tags,
                prices=[stored("s3", "standard", None)],
                is_kept=True,
                detail="its objects bill by their size",
                remedy="delete all versions of its objects, then: " + command(scope, "s3 rb", f"s3://{name}"),
            )

    return calls.each(calls.items("s3", "list_buckets", "Buckets", BucketRegion=scope.region), inspect)


def bucket_owner(calls: FinderCalls, scope: Scope, name: str) -> tuple[Owner | None, dict[str, str]]:
    """Returns why a bucket belongs to the cluster, and its tags. A bucket that does not have the default name is
    recognized by its tag only.
    """
    own = f"windlass-{scope.name}-{scope.account_id}"
    try:
        tags = calls.tags("s3", "get_bucket_tagging", "TagSet", Bucket=name)
    except NotThere:  # the bucket has no tags
        tags = {}
    owner = scope.owner(tags, name=name)
    if name == own and not scope.is_of_another(tags) and not (owner and owner.is_certain):
        owner = Owner(f"name {own}")
    return owner, tags


EFS: Final = ("efs", "file system")
MOUNT: Final = ("efs", "mount target")
FSX: Final = ("fsx", "file system")
BACKUP: Final = ("fsx", "backup")
S3_FILES: Final = ("s3files", "S3 file system")
REPOSITORY: Final = ("ecr", "repository")
BUCKET: Final = ("s3", "bucket")

FINDERS: Final = (
    Finder(*EFS, ("efs:DescribeFileSystems", "efs:DescribeMountTargets"), _efs),
    Finder(*MOUNT, ("efs:DescribeFileSystems", "efs:DescribeMountTargets"), _mounts),
    Finder(*FSX, ("fsx:DescribeFileSystems",), _fsx),
    Finder(*BACKUP, ("fsx:DescribeBackups",), _backups),
    Finder(*S3_FILES, ("s3files:ListFileSystems", "s3files:ListTagsForResource"), _s3_files),
    Finder(*REPOSITORY, ("ecr:DescribeRepositories", "ecr:ListTagsForResource", "ecr:DescribeImages"), _repositories),
    Finder(*BUCKET, ("s3:ListBuckets", "s3:GetBucketTagging"), _buckets),
)
