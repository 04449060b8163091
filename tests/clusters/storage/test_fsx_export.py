"""A removal exports FSx to the bucket before the file system is deleted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.clusters.eks.test_outputs import VALUES

import windlass.clusters
from windlass.clusters.aws import Aws, AwsError, NotThere
from windlass.clusters.eks.contents import Contents
from windlass.clusters.eks.outputs import FSX_PATH, Outputs, target
from windlass.clusters.find import ManagedCluster
from windlass.clusters.storage.fsx import EXPORTED, export
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\nstate: {bucket: states}\n"
SYSTEM = "fs-0123456789abcdef0"
WITH_FSX = Contents(fsx_ids=(SYSTEM,))


def eks(url: str) -> dict[str, Any]:
    return {"id": "vision", "endpoint": url, "certificate_authority": [{"data": "Q0E="}]}


class Fsx:
    """Stand-in for FSx with one file system."""

    def __init__(self, *links: str, task: str = "SUCCEEDED", failed: int = 0, lifecycle: str = "AVAILABLE") -> None:
        self.links, self.task, self.failed, self.lifecycle = links, task, failed, lifecycle
        self.tasks: list[dict[str, Any]] = []
        self.earlier: list[dict[str, Any]] = []
        """Tasks of an earlier command; they end once they are looked at by their id."""

    def describe_file_systems(self, FileSystemIds: list[str]) -> Any:  # noqa: N803
        if not self.lifecycle:
            raise NotThere("no such file system")
        return {"FileSystems": [{"FileSystemId": FileSystemIds[0], "Lifecycle": self.lifecycle}]}

    def describe_data_repository_associations(self, **_: Any) -> Any:
        return {"Associations": [{"FileSystemPath": one, "Lifecycle": "AVAILABLE"} for one in self.links]}

    def create_data_repository_task(self, **asked: Any) -> Any:
        self.tasks.append(asked)
        return {"DataRepositoryTask": {"TaskId": f"task-{len(self.tasks)}"}}

    def describe_data_repository_tasks(self, TaskIds: tuple[str, ...] = (), **_: Any) -> Any:  # noqa: N803
        if not TaskIds:
            return {"DataRepositoryTasks": self.earlier}
        self.earlier = [one for one in self.earlier if one["TaskId"] not in TaskIds]
        status = {"TotalCount": 5, "SucceededCount": 5 - self.failed, "FailedCount": self.failed}
        return {"DataRepositoryTasks": [{"TaskId": one, "Lifecycle": self.task, "Status": status} for one in TaskIds]}

    def aws(self) -> Aws:
        made: Any = SimpleNamespace(client=lambda _name: self)
        return cast("Aws", made)


def exported(named: ManagedCluster, fsx: Fsx, *, force: bool = False) -> tuple[str, ...]:
    return export(named, WITH_FSX, fsx.aws(), lambda _event: None, force=force)


def test_whole_file_system_is_exported(named: ManagedCluster) -> None:
    fsx = Fsx("/")
    assert exported(named, fsx) == ()
    assert fsx.tasks == [{"Type": "EXPORT_TO_REPOSITORY", "FileSystemId": SYSTEM, "Report": {"Enabled": False}}]


def test_files_written_since_an_earlier_export_are_exported_too(named: ManagedCluster) -> None:
    fsx = Fsx("/")
    fsx.earlier = [{"TaskId": "task-0", "Type": "EXPORT_TO_REPOSITORY", "Paths": [], "Lifecycle": "EXECUTING"}]
    assert exported(named, fsx) == ()
    assert fsx.earlier == [], "FSx takes one task at a time"
    assert len(fsx.tasks) == 1


@pytest.mark.parametrize(
    ("fsx", "why", "num_tasks"),
    [
        (Fsx(), "all of it of the file system .* is not linked to a bucket", 0),
        (Fsx("/s3"), "all but /s3 of the file system .* is not linked to a bucket", 1),
        (Fsx("/", task="FAILED"), r"task-\d is FAILED", 1),
        (Fsx("/", failed=2), r"task-\d is SUCCEEDED with 2 files that failed", 1),
    ],
)
def test_unexported_file_system_is_deleted_only_with_force(
    named: ManagedCluster, fsx: Fsx, why: str, num_tasks: int
) -> None:
    with pytest.raises((UsageError, EngineError), match=why):
        exported(named, fsx)
    assert len(fsx.tasks) == num_tasks
    [lost] = exported(named, fsx, force=True)
    assert re.search(f"{SYSTEM} was not exported, and was deleted with all its files: .*{why}", lost)


def test_failed_describe_is_an_error_and_not_a_deleted_file_system(named: ManagedCluster) -> None:
    def refuse(**_: Any) -> Any:
        raise AwsError("no answer")

    fsx = Fsx("/")
    fsx.describe_data_repository_associations = refuse  # type: ignore[method-assign]
    with pytest.raises(WindlassError, match="no answer"):
        exported(named, fsx)


@pytest.mark.parametrize("lifecycle", ["", "DELETING"])
def test_already_deleted_file_system_is_not_exported(named: ManagedCluster, lifecycle: str) -> None:
    fsx = Fsx(lifecycle=lifecycle)
    assert (exported(named, fsx), fsx.tasks) == ((), [])


def test_down_killed_after_export_and_unlink_continues(named: ManagedCluster) -> None:
    exported(named, Fsx("/"))
    assert json.loads((named.folder.path / EXPORTED).read_bytes()) == [SYSTEM]
    assert exported(named, Fsx()) == ()


def test_terraform_target_and_export_use_the_same_fsx_folder() -> None:
    text = (Path(windlass.clusters.__file__).with_name("eks") / "fsx.tf").read_text()
    [path] = re.findall(r'^\s*fsx_path\s*=\s*"(.*)"$', text, re.MULTILINE)
    assert re.findall(r"^\s*file_system_path\s*=\s*(.*)$", text, re.MULTILINE) == ["local.fsx_path"]
    fsx = {"fsx_id": SYSTEM, "fsx_dns_name": "fs.example", "fsx_mount_name": "abcd"}
    entry = target(Outputs.of({**VALUES, **fsx}), parse_cluster(f"{TEXT}storage: {{fsx: {{}}}}\n"), "/k")
    assert path == FSX_PATH == entry["file_systems"][0]["path"] == "/", "the claim mounts all of the file system"
