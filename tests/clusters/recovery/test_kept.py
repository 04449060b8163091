"""The removal of a cluster keeps its bucket with the key, even if it is killed (real Terraform, emulated AWS)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.recovery import program
from tests.fakeaws.emulator import Emulator
from tests.helpers.until import until

from windlass.clusters.aws import Aws
from windlass.clusters.storage.bucket import Bucket
from windlass.clusters.storage.kept_bucket import adoption
from windlass.clusters.terraform import Action, process
from windlass.clusters.terraform.folder import ClusterFolder, S3Backend
from windlass.worker.process import of_session, send

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENCE_SECONDS: Final = 400.0
MOMENTS: Final = {
    "amid the removal from the state": ("state-rm", ()),
    "at the plan after it": ("plan", ()),
    "as the destroy starts": ("apply", ()),
    "at its first resource": ("apply", ("apply_start",)),
    "amid its resources": ("apply", ("apply_complete",)),
    "at its last resource": ("apply", ("apply_complete", "aws_efs_file_system.main")),
}
"""Moments of the kill: the running Terraform command, and words of a line that it has printed."""


class Scene:
    """A cluster whose bucket contains an object."""

    def __init__(self, name: str, aws: Emulator, environ: dict[str, str], home: Path) -> None:
        self.name, self.aws, self.environ, self.home = name, aws, {**environ, **aws.environ}, home
        self.bucket, self.folder = f"{name}-bucket", ClusterFolder.of(home, name)
        aws.client("s3").create_bucket(Bucket=f"{name}-states")
        self.backend = S3Backend(f"{name}-states", f"{name}.tfstate", "us-east-1", endpoint=aws.url)

    def up(self) -> str:
        """Creates the cluster, and puts an object into the bucket; returns the id of the bucket's key."""
        with self.folder.locked("test"):
            driver = program.terraform_of(self.folder, self.environ)
            program.prepare(driver, self.backend, program.KEPT)
            driver.apply(driver.plan())
        s3 = self.aws.client("s3")
        s3.put_object(Bucket=self.bucket, Key="model", Body=b"weights")
        return str(s3.head_object(Bucket=self.bucket, Key="model")["SSEKMSKeyId"]).rpartition("/")[2]

    def down(self) -> subprocess.Popen[bytes]:
        """Starts the removal."""
        argv = [str(self.home), self.name, json.dumps(asdict(self.backend)), json.dumps(self.environ), "down-kept"]
        root = Path(__file__).parents[3]
        with (self.home / "down.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.clusters.recovery.program", *argv],
                cwd=root,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{root / 'src'}:{root}"},
            )

    def kill_down(self, command: str, words: tuple[str, ...]) -> None:
        """Starts the removal, and kills all its processes at a given moment."""
        child = self.down()
        found = until(lambda: self._running(command, words) or child.poll() is not None, self.said, PATIENCE_SECONDS)
        assert isinstance(found, process.RunningCommand), f"it was over before: {self.said()}"
        child.kill()
        for pid in of_session(found.pid):
            send(pid, signal.SIGKILL)
        child.wait(PATIENCE_SECONDS)

    def _running(self, command: str, words: tuple[str, ...]) -> process.RunningCommand | None:
        """Returns the running command. `state rm` counts only once it has started, because a plan runs before it."""
        record = process.record_of(self.folder.path)
        is_after = command == "state-rm" or any(self.folder.logs.glob("*state-rm*"))
        if record is None or record.command != command or not record.is_alive or not is_after:
            return None
        lines = record.log.read_text().splitlines()
        return record if not words or any(all(word in line for word in words) for line in lines) else None

    def said(self) -> str:
        return (self.home / "down.log").read_text()[-3000:]

    def assert_kept(self, key: str) -> None:
        """Checks that the object is readable, and nothing else of the cluster exists."""
        s3, kms = self.aws.client("s3"), self.aws.client("kms")
        assert s3.get_object(Bucket=self.bucket, Key="model")["Body"].read() == b"weights"
        assert kms.describe_key(KeyId=key)["KeyMetadata"]["KeyState"] == "Enabled"
        own = {"TagKey": "windlass.dev/cluster", "TagValue": self.name}
        keys = [one["KeyId"] for one in kms.list_keys()["Keys"]]
        keys = [one for one in keys if own in kms.list_resource_tags(KeyId=one)["Tags"]]
        alive = [one for one in keys if kms.describe_key(KeyId=one)["KeyMetadata"]["KeyState"] == "Enabled"]
        assert alive == [key], "the key of what was destroyed waits for its deletion"
        with self.folder.locked("test"):
            assert program.terraform_of(self.folder, self.environ).state() == []


@pytest.mark.nightly
def test_emulated_objects_are_readable_after_removal_and_by_the_next_cluster(
    shared_aws: Emulator, terraform: dict[str, str], tmp_path: Path
) -> None:
    scene = Scene("kept", shared_aws, terraform, tmp_path)
    key = scene.up()
    child = scene.down()
    assert child.wait(PATIENCE_SECONDS) == 0, scene.said()
    scene.assert_kept(key)

    shared_aws.client("kms").schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    ignore: Callable[[Any], None] = lambda _event: None  # noqa: E731
    bucket = Bucket(scene.bucket, exists=True, owner="kept")
    with scene.folder.locked("test"), Aws(environ=scene.environ) as aws:
        driver = program.terraform_of(scene.folder, scene.environ)
        dry, notes = adoption("kept", bucket, {}, aws, ignore, is_dry=True)
        assert (list(dry), "`up` cancels it" in notes[-1]) == (["aws_s3_bucket.main[0]"], True)
        assert shared_aws.client("kms").describe_key(KeyId=key)["KeyMetadata"]["KeyState"] == "PendingDeletion"
        kept, _ = adoption("kept", bucket, {}, aws, ignore, is_dry=False)
        plan = driver.plan(adopt=kept)
        made = {one.address for one in plan.summary.changes if one.action is Action.CREATE}
        assert not any("kms" in one and "main" not in one for one in made), made
        driver.apply(plan)
        assert {one.id for one in driver.state() if one.address == "aws_kms_key.bucket[0]"} == {key}
        assert driver.plan().summary.is_empty
    found = shared_aws.client("s3").get_object(Bucket=scene.bucket, Key="model")
    assert found["Body"].read() == b"weights"


@pytest.mark.nightly
@pytest.mark.parametrize("moment", MOMENTS)
def test_emulated_kill_9_of_a_removal_loses_neither_the_bucket_nor_its_key(
    moment: str, shared_aws: Emulator, terraform: dict[str, str], tmp_path: Path
) -> None:
    scene = Scene(f"killed-{list(MOMENTS).index(moment)}", shared_aws, terraform, tmp_path)
    key = scene.up()
    scene.kill_down(*MOMENTS[moment])
    child = scene.down()
    assert child.wait(PATIENCE_SECONDS) == 0, scene.said()
    scene.assert_kept(key)
