"""The working folder of a cluster is written, updated, locked and removed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.clusters.terraform.folder import ClusterFolder, FolderBusy, FolderError, LocalBackend, S3Backend
from windlass.errors import UsageError

S3 = S3Backend("states", "clusters/dev.tfstate", "eu-west-1")


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """Creates a configuration of two files."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "main.tf").write_text("# one")
    (folder / "old.tf").write_text("# old")
    (folder / "names.json").write_text("{}")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    """Returns the folder of a cluster."""
    return ClusterFolder.of(tmp_path / "home", "dev")


@pytest.mark.parametrize("name", ["", "a", "A-b", "../up", "a/b", "1ab", "ab-", "x" * 31, "ab\n"])
def test_invalid_cluster_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        ClusterFolder.of(tmp_path, name)


def test_first_write_creates_files_readable_by_this_user_only(folder: ClusterFolder, configuration: Path) -> None:
    assert not folder.exists
    folder.write(configuration, {"name": "dev", "zones": []}, S3)
    assert {path.name for path in folder.path.iterdir() if path.is_file()} == {
        "README.txt",
        "backend.tf.json",
        "configuration.json",
        "main.tf",
        "names.json",
        "old.tf",
        "terraform.tfvars.json",
    }
    assert folder.exists
    assert folder.variables() == {"name": "dev", "zones": []}
    assert folder.backend() == S3
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.path.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert "terraform plan" in (folder.path / "README.txt").read_text()


def test_the_s3_backend_locks_and_encrypts(folder: ClusterFolder, configuration: Path) -> None:
    folder.write(configuration, {}, S3)
    settings = json.loads((folder.path / "backend.tf.json").read_text())["terraform"]["backend"]["s3"]
    assert settings["use_lockfile"] is True
    assert settings["encrypt"] is True
    assert not {"endpoints", "skip_credentials_validation"} & set(settings)


def test_a_second_write_changes_nothing(folder: ClusterFolder, configuration: Path) -> None:
    folder.write(configuration, {"a": 1}, LocalBackend())
    before = {path: path.stat().st_ino for path in folder.path.iterdir()}
    folder.write(configuration, {"a": 1}, LocalBackend())
    assert {path: path.stat().st_ino for path in folder.path.iterdir()} == before, "no file was replaced"


def test_new_version_replaces_its_files_and_keeps_user_files(folder: ClusterFolder, configuration: Path) -> None:
    folder.write(configuration, {}, LocalBackend())
    (folder.path / "mine.tf").write_text("# mine")
    (configuration / "main.tf").write_text("# two")
    (configuration / "old.tf").unlink()
    folder.write(configuration, {}, LocalBackend())
    assert (folder.path / "main.tf").read_text() == "# two"
    assert not (folder.path / "old.tf").exists()
    assert (folder.path / "mine.tf").read_text() == "# mine"


def test_obsolete_file_changed_by_the_user_is_kept(folder: ClusterFolder, configuration: Path) -> None:
    folder.write(configuration, {}, LocalBackend())
    (folder.path / "old.tf").write_text("# changed")
    (configuration / "old.tf").unlink()
    folder.write(configuration, {}, LocalBackend())
    assert (folder.path / "old.tf").read_text() == "# changed"


def test_a_change_of_backend_is_refused(folder: ClusterFolder, configuration: Path) -> None:
    folder.write(configuration, {}, LocalBackend())
    (folder.path / "terraform.tfstate").write_text('{"version": 4, "resources": [{}]}')
    with pytest.raises(FolderError, match=r"s3://states/clusters/dev\.tfstate was asked for") as refused:
        folder.write(configuration, {}, S3)
    assert f"write {json.dumps(S3.configuration())} into backend.tf.json" in refused.value.hint


def test_backend_without_a_state_can_be_changed(folder: ClusterFolder, configuration: Path) -> None:
    """For example after a misspelled bucket name, or if the cluster was only planned before."""
    folder.write(configuration, {}, S3Backend("misspelled", "clusters/dev.tfstate", "eu-west-1"))
    folder.write(configuration, {}, LocalBackend())
    initialized = folder.path / ".terraform" / "terraform.tfstate"
    initialized.parent.mkdir()
    initialized.write_text("{}")
    folder.write(configuration, {}, S3)
    assert (folder.backend(), initialized.exists()) == (S3, False)
    initialized.write_text("{}")
    with pytest.raises(FolderError, match="the working folder was asked for"):
        folder.write(configuration, {}, LocalBackend())


def test_a_package_without_configuration_is_refused(folder: ClusterFolder, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"no \.tf files"):
        folder.write(tmp_path, {}, LocalBackend())


def test_second_command_is_refused_with_the_name_of_the_first(folder: ClusterFolder) -> None:
    holder = rf"in use by windlass cluster up \(pid {os.getpid()}, since "
    with folder.locked("cluster up"), pytest.raises(FolderBusy, match=holder), folder.locked("cluster down"):
        pass
    with folder.locked("cluster down"):
        pass


def test_lock_of_a_killed_command_is_released(folder: ClusterFolder) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from windlass.clusters.terraform.folder import ClusterFolder\n"
        "with ClusterFolder.of(Path(sys.argv[1]), 'dev').locked('cluster up'):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder.home)], check=False)
    with folder.locked("cluster down"):
        pass


def test_folder_with_resources_in_its_state_is_not_removed(folder: ClusterFolder, configuration: Path) -> None:
    folder.write(configuration, {}, LocalBackend())
    (folder.path / "terraform.tfstate").write_text('{"version": 4, "resources": [{}]}')
    with pytest.raises(FolderError, match="still names 1 resources"):
        folder.remove()
    (folder.path / "terraform.tfstate").write_text('{"version": 4, "resources": []}')
    folder.remove()
    assert not folder.path.exists()
    folder.remove()


def test_folder_with_a_migrated_state_can_be_removed(folder: ClusterFolder, configuration: Path) -> None:
    folder.write(configuration, {}, S3)
    (folder.path / "terraform.tfstate").write_text('{"version": 4, "resources": [{}]}')
    folder.remove()
    assert not folder.path.exists()


def test_folders_are_listed_by_name(tmp_path: Path, configuration: Path) -> None:
    assert ClusterFolder.all_in(tmp_path) == []
    for name in ("zeta", "alpha"):
        ClusterFolder.of(tmp_path, name).write(configuration, {}, LocalBackend())
    (tmp_path / "clusters" / "Not A Name").mkdir()
    assert [one.name for one in ClusterFolder.all_in(tmp_path)] == ["alpha", "zeta"]


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"terraform": {}}', '{"terraform": {"backend": {"s3": {}}}}'])
def test_damaged_backend_file_is_reported(folder: ClusterFolder, text: str) -> None:
    folder.path.mkdir(parents=True)
    (folder.path / "backend.tf.json").write_text(text)
    with pytest.raises(FolderError, match=r"backend\.tf\.json"):
        folder.backend()
