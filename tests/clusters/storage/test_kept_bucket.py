"""`cluster down` keeps or deletes the bucket in the Terraform state depending on its owner."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.clusters.find import StageStarted
from windlass.clusters.reconcile import recover
from windlass.clusters.recovery import RecoveryReport
from windlass.clusters.storage.bucket import ADDRESS, Bucket
from windlass.clusters.storage.kept_bucket import keep_or_empty
from windlass.clusters.tags import OWNER
from windlass.clusters.terraform.state import StateResource
from windlass.runs.context import Context

NAME = "windlass-vision-1"
BLOCK = "aws_s3_bucket_public_access_block.main[0]"
OWN = Bucket(NAME, exists=True, owner="vision")
OTHERS = Bucket(NAME, exists=True, owner="speech", is_managed=False)


class World:
    """A Terraform state with a bucket and its key, and the account that contains them."""

    def __init__(self, *, has_objects: bool) -> None:
        self.key_state = "Enabled"
        self.default_key = "k-1"
        self.is_public_blocked = True
        self.is_tried = False
        self.versions: dict[str, Any] = {"Versions": [{}]} if has_objects else {}
        self.told: list[str] = []
        self.forgotten: list[str] = []
        self.targets: list[str] = []
        self.folder = SimpleNamespace(name="vision")

    def state(self) -> list[StateResource]:
        found = {ADDRESS: NAME, "aws_kms_key.bucket[0]": "k-1", "aws_vpc.main": "vpc-1"}
        if not self.is_tried:
            found[BLOCK] = NAME
        arn = {"arn": "arn:aws:kms:us-west-2:1:key/k-1"}
        return [StateResource(one, one.partition(".")[0], "managed", id, False, arn) for one, id in found.items()]

    def fail_to_delete_bucket(self) -> None:
        """Deletes the settings of the bucket, as a destroy does before it fails to delete the bucket."""
        self.is_tried, self.default_key, self.is_public_blocked = True, "", False

    def encrypt(self, ServerSideEncryptionConfiguration: dict[str, Any], **_: Any) -> None:  # noqa: N803
        [rule] = ServerSideEncryptionConfiguration["Rules"]
        self.default_key = rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"]

    def block_public(self, PublicAccessBlockConfiguration: dict[str, bool], **_: Any) -> None:  # noqa: N803
        self.is_public_blocked = all(PublicAccessBlockConfiguration.values())

    def forget(self, addresses: list[str]) -> None:
        self.forgotten = addresses

    def plan(self, targets: list[str]) -> Any:
        self.targets = targets
        return SimpleNamespace(summary=SimpleNamespace(is_empty=True))

    def client(self, _service: str) -> Any:
        """Returns a client for S3 and KMS."""
        rule = {"ApplyServerSideEncryptionByDefault": {"KMSMasterKeyID": self.default_key}}
        return SimpleNamespace(
            list_object_versions=lambda **_: self.versions,
            get_bucket_encryption=lambda **_: {"ServerSideEncryptionConfiguration": {"Rules": [rule]}},
            put_bucket_encryption=self.encrypt,
            put_public_access_block=self.block_public,
            describe_key=lambda **_: {"KeyMetadata": {"KeyId": "k-1", "KeyState": self.key_state}},
            list_resource_tags=lambda **_: {"Tags": [{"TagKey": OWNER, "TagValue": "vision"}]},
            cancel_key_deletion=lambda **_: setattr(self, "key_state", "Disabled"),
            enable_key=lambda **_: setattr(self, "key_state", "Enabled"),
        )

    def removed(self, bucket: Bucket | None, *, is_to_delete: bool) -> bool:
        world: Any = self

        def told(event: StageStarted) -> None:
            self.told.append(event.text)

        return keep_or_empty(world, world, told, bucket, is_to_delete=is_to_delete)


@pytest.mark.parametrize("has_objects", [True, False])
@pytest.mark.parametrize("bucket", [OTHERS, Bucket(NAME, exists=True, is_managed=False)], ids=["others", "no tag"])
def test_bucket_tagged_for_another_owner_is_always_kept(bucket: Bucket, has_objects: bool) -> None:
    """A plan would delete the bucket, because the configuration no longer contains it."""
    world = World(has_objects=has_objects)
    assert world.removed(bucket, is_to_delete=True)
    assert (world.forgotten, world.targets) == ([ADDRESS, BLOCK, "aws_kms_key.bucket[0]"], [])
    assert world.told[0] == f"leaving s3://{NAME}, which does not belong to this cluster"
    assert World(has_objects=has_objects).removed(bucket, is_to_delete=False)


def test_own_bucket_is_kept_with_objects_and_deleted_on_request() -> None:
    assert World(has_objects=True).removed(OWN, is_to_delete=False)
    assert not World(has_objects=False).removed(OWN, is_to_delete=False)
    for bucket in (OWN, None):
        world = World(has_objects=True)
        assert not world.removed(bucket, is_to_delete=True)
        assert (world.forgotten, world.targets) == ([], [ADDRESS])


def test_bucket_whose_deletion_failed_is_kept_with_the_settings_that_the_destroy_deleted() -> None:
    """The next `up` and the audit find the key by the default encryption; `down` cancels its pending deletion too."""
    world = World(has_objects=True)
    world.fail_to_delete_bucket()
    world.key_state = "PendingDeletion"
    assert world.removed(OWN, is_to_delete=False)
    assert (world.default_key.rpartition("/")[2], world.is_public_blocked, world.key_state) == ("k-1", True, "Enabled")

    others = World(has_objects=True)
    others.fail_to_delete_bucket()
    assert others.removed(OTHERS, is_to_delete=False)
    assert (others.default_key, others.is_public_blocked) == ("", False), "settings of another owner"


def test_recovery_cancels_the_pending_deletion_of_the_bucket_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Recovery ignores keys pending deletion, so without the cancellation the plan would create a second key."""
    world, seen = World(has_objects=True), list[str]()
    world.key_state = "PendingDeletion"
    named: Any = SimpleNamespace(cluster=SimpleNamespace(name="vision"), aws=lambda _context: nullcontext(world))
    terraform: Any = None

    def recover_state(*_: Any, **_more: Any) -> RecoveryReport:
        seen.append(world.key_state)
        return RecoveryReport(None, (), (), (), (), (), ())

    monkeypatch.setattr("windlass.clusters.recovery.recover", recover_state)
    context = Context({}, tmp_path)
    recover(named, terraform, context, lambda _event: None, bucket=OWN, break_lock=False, is_asked=True)
    assert seen == ["Enabled"]
