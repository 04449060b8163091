"""`cluster down` works with the real Terraform, from a second machine, and keeps the bucket (emulated)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.clusters.components.fakecluster import FakeCluster
from tests.fakeaws.emulator import ACCOUNT, Emulator, emulated_aws
from tests.fakeaws.emulator.fixtures import terraform  # noqa: F401
from tests.helpers.until import until

from windlass.clusters.eks.outputs import FSX_PATH
from windlass.clusters.terraform import process
from windlass.clusters.terraform.folder import ClusterFolder
from windlass.engines.kubernetes.objects.layout import RUN_LABEL
from windlass.worker.process import of_session, send

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]
BUCKET = f"windlass-vision-{ACCOUNT}"
CLUSTER: dict[str, Any] = {
    "name": "vision",
    "region": "us-east-1",
    "zones": ["us-east-1a", "us-east-1b"],
    "network": {"public_access": ["127.0.0.1/32"]},
    "state": {"bucket": "states"},
    "components": [],
}
LOGIN = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "t"}}'
"""
"""Stand-in for `aws eks get-token`."""


class Machine:
    """A machine with a separate home and the same cluster file."""

    def __init__(self, folder: Path, environ: dict[str, str], storage: dict[str, Any]) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "cluster.yaml").write_text(json.dumps(CLUSTER | {"storage": storage}))
        self._environ = environ | {"HOME": str(folder), "WINDLASS_HOME": str(folder / "home"), "NO_COLOR": "1"}

    def cluster(self, *words: str, code: int = 0) -> str:
        """Runs a command and returns its output; raises AssertionError for another exit code."""
        child = self.start(*words)
        out, err = child.communicate()
        assert child.returncode == code, f"{words}: {child.returncode}\n{out}\n{err}"
        return out if code == 0 else out + err

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "windlass", "cluster", *words],
            cwd=self.folder,
            env=self._environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.cluster(*words, "-o", "json", code=code).splitlines()[0])


class Scene:
    """An account with an API server for its EKS clusters, and the machines of several users."""

    def __init__(self, aws: Emulator, api: FakeCluster, folder: Path, environ: dict[str, str]) -> None:
        self.aws, self.api, self._folder = aws, api, folder
        (folder / "bin").mkdir()
        (folder / "bin" / "aws").write_text(LOGIN)
        (folder / "bin" / "aws").chmod(0o755)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._environ = {**environ, **aws.environ, "PATH": path}

    def machine(self, name: str, **storage: Any) -> Machine:
        return Machine(self._folder / name, self._environ, storage or {"efs": True})

    def read(self) -> bytes:
        """Reads the object in the bucket like any client."""
        return bytes(self.aws.client("s3").get_object(Bucket=BUCKET, Key="results/model")["Body"].read())

    def key(self) -> tuple[str, str]:
        """Returns id and state of the key that encrypts the object."""
        key = self.aws.client("s3").head_object(Bucket=BUCKET, Key="results/model")["SSEKMSKeyId"]
        about = self.aws.client("kms").describe_key(KeyId=key)["KeyMetadata"]
        return about["KeyId"], about["KeyState"]


@pytest.fixture
def scene(tmp_path: Path, terraform: dict[str, str]) -> Iterator[Scene]:  # noqa: F811
    with closing(FakeCluster()) as api:
        server = {
            "FAKEAWS_EKS_ENDPOINT": f"http://127.0.0.1:{api.port}",
            "FAKEAWS_EKS_CA": "Q0E=",
            "FAKEAWS_EFS_BYTES": "50000000000",
        }
        with emulated_aws(tmp_path / "aws", environ=server) as aws:
            aws.client("s3").create_bucket(Bucket="states")
            yield Scene(aws, api, tmp_path, terraform)


def test_emulated_second_machine_checks_like_the_first_and_kept_bucket_is_readable(scene: Scene) -> None:
    first = scene.machine("first")
    first.json("up", "--yes", "--no-components")
    scene.aws.client("s3").put_object(Bucket=BUCKET, Key="results/model", Body=b"weights")
    key, _ = scene.key()

    second = scene.machine("second")
    assert second.json("status", code=1)["summary"]["state"] == "up", "1: its operators were not installed"
    labels = {"labels": {RUN_LABEL: "digits-ab12"}}
    scene.api.put("v1", "Pod", "digits-0", "training", metadata=labels, status={"phase": "Running"})
    third = scene.machine("third")
    assert "run digits-ab12" in third.cluster("down", "--yes", code=2)
    scene.api.objects.clear()
    assert "has 50,000.0 MB of files, which would be deleted" in third.cluster("down", "--yes", code=2)

    scene.aws.client("s3").delete_object(Bucket="states", Key="windlass/vision.tfstate")
    fourth = scene.machine("fourth")
    assert "--recover" in fourth.cluster("down", "--yes", code=2)
    assert "has 50,000.0 MB of files, which would be deleted" in fourth.cluster("down", "--yes", "--recover", code=2)
    assert len(scene.aws.client("efs").describe_file_systems()["FileSystems"]) == 1

    removed = fourth.json("down", "--yes", "--force")
    assert removed["audit"]["is_clean"], removed["audit"]
    kept = {one["kind"]: one for one in removed["audit"]["kept"]}
    assert (set(kept), kept["key"]["id"], kept["key"]["usd_per_month"]) == ({"bucket", "key"}, key, 1.0)
    assert (scene.read(), scene.key()) == (b"weights", (key, "Enabled"))

    scene.aws.client("kms").schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    with pytest.raises(ClientError, match="pending deletion"):
        scene.read()
    audit = second.json("audit", "vision", "--region", "us-east-1", code=1)
    [leak] = audit["leaks"]
    assert (leak["id"], f"encrypts s3://{BUCKET}" in leak["detail"]) == (key, True)

    planned = first.json("plan")
    assert any("`up` cancels it" in one for one in planned["notes"])
    with pytest.raises(ClientError, match="pending deletion"):
        scene.read()
    first.json("up", "--yes", "--no-components")
    assert (scene.read(), scene.key()) == (b"weights", (key, "Enabled"))
    assert first.json("plan")["changes"] == []
    aliases = scene.aws.client("kms").list_aliases()["Aliases"]
    assert [one["TargetKeyId"] for one in aliases if one["AliasName"] == "alias/windlass/vision/bucket"] == [key]

    gone = first.json("down", "--yes", "--force", "--delete-bucket")
    assert (gone["audit"]["is_clean"], gone["audit"]["kept"]) == (True, [])
    assert scene.aws.client("kms").describe_key(KeyId=key)["KeyMetadata"]["KeyState"] == "PendingDeletion"


LINK = "aws_fsx_data_repository_association.main[0]"


def unlinked(folder: ClusterFolder) -> process.RunningCommand | None:
    """Returns the running destroy once it has removed the link between FSx and the bucket."""
    record = process.record_of(folder.path)
    if record is None or record.command != "apply" or not record.is_alive:
        return None
    lines = [line for line in record.log.read_text().splitlines() if LINK in line and '"apply_complete"' in line]
    return record if lines else None


def test_emulated_fsx_is_exported_before_its_removal_even_after_a_killed_down(scene: Scene) -> None:
    """Provider 5.100 waits ten minutes for the removal of a file system, so the down is killed."""
    machine, fsx = scene.machine("first", fsx={"prefix": "train/"}), scene.aws.client("fsx")
    machine.json("up", "--yes", "--no-components")
    [link] = fsx.describe_data_repository_associations()["Associations"]
    assert link["FileSystemPath"] == FSX_PATH
    folder = ClusterFolder.of(machine.folder / "home", "vision")

    child = machine.start("down", "--yes")
    found = until(lambda: unlinked(folder) or child.poll() is not None, "the link stays", 900)
    assert isinstance(found, process.RunningCommand), child.communicate()
    child.kill()
    for pid in of_session(found.pid):
        send(pid, signal.SIGKILL)
    child.communicate()
    assert fsx.describe_data_repository_associations()["Associations"] == []

    removed = machine.json("down", "--yes")
    assert (removed["audit"]["is_clean"], removed["lost"]) == (True, [])
    assert fsx.describe_file_systems()["FileSystems"] == []
    [task] = fsx.describe_data_repository_tasks()["DataRepositoryTasks"]
    assert (task["Type"], task["Lifecycle"], task["Paths"]) == ("EXPORT_TO_REPOSITORY", "SUCCEEDED", [])
