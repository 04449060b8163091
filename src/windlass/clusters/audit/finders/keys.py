"""Finder for KMS keys and the data that each key encrypts: deleting a key makes its data permanently unreadable."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.finder import Finder, command, row
from windlass.clusters.audit.finders.storage import bucket_owner
from windlass.clusters.audit.report import FoundObject, PriceKey
from windlass.clusters.audit.scope import Owner, Scope
from windlass.clusters.aws import AwsError, NotThere
from windlass.clusters.storage.bucket_key import PENDING, key_in

ENDING: Final = (PENDING, "PendingReplicaDeletion")
LISTED: Final[tuple[tuple[str, str, str, dict[str, Any], str, str], ...]] = (
    ("efs", "describe_file_systems", "FileSystems", {}, "FileSystemId", "KmsKeyId"),
    ("fsx", "describe_file_systems", "FileSystems", {}, "FileSystemId", "KmsKeyId"),
    ("fsx", "describe_backups", "Backups", {}, "BackupId", "KmsKeyId"),
    ("ec2", "describe_volumes", "Volumes", {}, "VolumeId", "KmsKeyId"),
    ("ec2", "describe_snapshots", "Snapshots", {"OwnerIds": ["self"]}, "SnapshotId", "KmsKeyId"),
    ("logs", "describe_log_groups", "logGroups", {}, "logGroupName", "kmsKeyId"),
)
"""Listings that contain the KMS key of each object: client, operation, list member, parameters, id member, key
member."""


class _Key(NamedTuple):
    id: str
    about: dict[str, Any]
    owner: Owner
    tags: dict[str, str]


def _keys(calls: FinderCalls, scope: Scope) -> Iterator[FoundObject]:
    aliases: dict[str, str] = {}
    for one in calls.items("kms", "list_aliases", "Aliases"):
        if one.get("TargetKeyId"):
            aliases.setdefault(one["TargetKeyId"], one["AliasName"].removeprefix("alias/"))

    def inspect(one: dict[str, Any]) -> Iterator[_Key]:
        id = one["KeyId"]
        about = calls.get("kms", "describe_key", KeyId=id)["KeyMetadata"]
        if about.get("KeyManager") == "AWS":
            return  # AWS managed keys are free
        tags = calls.tags("kms", "list_resource_tags", "Tags", KeyId=id)
        if owner := scope.owner(tags, name=aliases.get(id, "")):
            yield _Key(id, about, owner, tags)

    keys = calls.items("kms", "list_keys", "Keys")
    own = list(calls.each((one for one in keys if not aliases.get(one["KeyId"], "").startswith("aws/")), inspect))
    is_ending = any(one.about.get("KeyState") in ENDING for one in own)
    of_bucket = [one.id for one in own if one.tags.get("Name") == f"{scope.name}-bucket"]
    by_alias = {name: id for id, name in aliases.items()}
    uses = _uses(calls, scope, by_alias, of_bucket, all_of_it=is_ending) if own else {}
    for one in own:
        if (found := _row(scope, one, aliases.get(one.id, ""), uses.get(one.id, []))) is not None:
            yield found


def _row(scope: Scope, key: _Key, name: str, uses: list[str]) -> FoundObject | None:
    """Returns a row for a key that bills, or whose deletion would make data unreadable. A bucket's key is kept too."""
    id, about, owner, tags = key
    state = str(about.get("KeyState", ""))
    is_ending = state in ENDING
    if is_ending and not uses:
        return None  # a key pending deletion is free
    encrypts = f", encrypts {', '.join(uses[:5])}{f' and {len(uses) - 5} more' if len(uses) > 5 else ''}"
    when = f" until {about['DeletionDate']:%Y-%m-%d}" if is_ending and about.get("DeletionDate") else ""
    is_of_bucket = any(one.startswith("s3://") for one in uses)
    delete = command(scope, "kms schedule-key-deletion --pending-window-in-days 7 --key-id", id)
    if is_ending:
        remedy = f"{command(scope, 'kms cancel-key-deletion --key-id', id)} && " + command(
            scope, "kms enable-key --key-id", id
        )
    else:
        remedy = f"delete what it encrypts, then: {delete}" if uses else delete
    return row(
        KEY,
        scope,
        owner,
        id,
        name=name,
        tags=tags,
        prices=[] if is_ending else [PriceKey("kms", "month", "key", 1.0)],
        detail=f"{state}{when}{encrypts if uses else ''}",
        remedy=remedy,
        is_kept=is_of_bucket and not is_ending,
    )


def _uses(
    calls: FinderCalls, scope: Scope, by_alias: dict[str, str], of_bucket: list[str], *, all_of_it: bool
) -> dict[str, list[str]]:
    """Returns the objects that each key encrypts, by key id: only buckets, unless `all_of_it`.

    The keys `of_bucket` encrypt objects of the cluster's bucket even if its default encryption names no key: a destroy
    that fails to delete the bucket has deleted its default encryption.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)

    def bucket(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
        name, rules = one["Name"], []
        with contextlib.suppress(NotThere):
            encryption = calls.get("s3", "get_bucket_encryption", Bucket=name)
            rules = (encryption.get("ServerSideEncryptionConfiguration") or {}).get("Rules", [])
        keys = [key for rule in rules if (key := key_in(rule))]
        if of_bucket and not keys:
            owner, _ = bucket_owner(calls, scope, name)
            keys = of_bucket if owner is not None and owner.is_certain else []
        yield from ((key, f"s3://{name}") for key in keys)

    def repositories() -> Iterator[tuple[str, str]]:
        for one in calls.items("ecr", "describe_repositories", "repositories"):
            yield (one.get("encryptionConfiguration") or {}).get("kmsKey", ""), f"repository {one['repositoryName']}"

    def listed(
        service: str, operation: str, key: str, parameters: dict[str, Any], id: str, named: str
    ) -> Iterator[tuple[str, str]]:
        for one in calls.items(service, operation, key, **parameters):
            yield str(one.get(named) or ""), str(one[id])

    buckets = calls.items("s3", "list_buckets", "Buckets", BucketRegion=scope.region)
    sources: list[tuple[str, Iterable[tuple[str, str]]]] = [("s3", calls.each(buckets, bucket))]
    if all_of_it:
        sources += [("ecr", repositories()), *((one[0], listed(*one)) for one in LISTED)]
    for service, pairs in sources:
        try:
            for key, what in pairs:
                id = key.rpartition("alias/")[2] if "alias/" in key else key.rpartition("/")[2]
                found[by_alias.get(id, id)].append(what)
        except AwsError as error:
            if not calls.is_absent(error, service):
                calls.record_failure(error)
    return found


KEY: Final = ("kms", "key")
FINDERS: Final = (
    Finder(*KEY, (
        "kms:ListAliases", "kms:ListKeys", "kms:DescribeKey", "kms:ListResourceTags", "s3:ListBuckets",
        "s3:GetBucketEncryption", "s3:GetBucketTagging", "ecr:DescribeRepositories", "efs:DescribeFileSystems",
        "fsx:DescribeFileSystems", "fsx:DescribeBackups", "ec2:DescribeVolumes", "ec2:DescribeSnapshots",
        "logs:DescribeLogGroups",
    ), _keys),
)  # fmt: skip
