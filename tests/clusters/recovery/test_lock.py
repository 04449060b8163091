"""A state lock is kept unless its holder is provably gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from windlass.clusters.recovery.lock import why_kept
from windlass.clusters.terraform import LockInfo, Program, Terraform, process
from windlass.clusters.terraform.folder import ClusterFolder, LocalBackend

PROGRAM = Program(Path("/usr/bin/false"), "terraform", (1, 11, 4))


def lock(taken: float | None = None, host: str | None = None) -> LockInfo:
    """Returns a lock that was taken at a time, by default now and on this machine."""
    moment = datetime.fromtimestamp(time.time() if taken is None else taken, UTC)
    created = f"{moment:%Y-%m-%d %H:%M:%S.%f}000 +0000 UTC"
    who = f"root@{host or os.uname().nodename}"
    return LockInfo("id", "bucket/key", "OperationTypeApply", who, created)


@pytest.fixture
def terraform(tmp_path: Path) -> Terraform:
    """Returns a cluster on which no command has run yet."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "main.tf").touch()
    folder = ClusterFolder.of(tmp_path, "dev")
    folder.write(tmp_path / "package", {}, LocalBackend())
    return Terraform(PROGRAM, folder, {"PATH": os.environ["PATH"]})


@pytest.fixture
def gone(terraform: Terraform) -> Terraform:
    """Returns a cluster whose last Terraform process exited unobserved."""
    start(terraform, "pass").wait()
    return terraform


def start(terraform: Terraform, script: str) -> subprocess.Popen[bytes]:
    """Starts a process in place of Terraform."""
    folder = terraform.folder
    return process.start(
        [sys.executable, "-c", script],
        folder.path,
        os.environ,
        command="apply",
        log=folder.logs / "a.log",
        machine_id=terraform.machine_id,
    )


@pytest.fixture
def running(terraform: Terraform) -> Iterator[Terraform]:
    """Yields a cluster with a running Terraform process."""
    child = start(terraform, "import time; time.sleep(1000)")
    yield terraform
    child.kill()
    child.wait()


def test_lock_of_an_exited_terraform_is_released(gone: Terraform) -> None:
    assert why_kept(gone, lock()) == ""


def test_lock_of_an_earlier_exited_terraform_is_released(gone: Terraform) -> None:
    start(gone, "pass").wait()
    process.forget(gone.folder.path)  # the end of the second process was observed
    assert why_kept(gone, lock()) == ""


def test_a_lock_of_another_machine_is_kept(gone: Terraform) -> None:
    assert "it is held from laptop" in why_kept(gone, lock(host="laptop"))


def test_a_lock_of_a_terraform_that_a_user_runs_is_kept(terraform: Terraform) -> None:
    assert "not taken by a Terraform that Windlass started" in why_kept(terraform, lock())


def test_a_record_of_another_machine_proves_nothing(gone: Terraform) -> None:
    gone.machine_id = "another"
    assert "not taken by a Terraform that Windlass started" in why_kept(gone, lock())


def test_a_lock_from_before_the_killed_terraform_is_kept(gone: Terraform) -> None:
    assert "it is older than" in why_kept(gone, lock(time.time() - 3600))


def test_a_lock_without_a_readable_time_is_kept(gone: Terraform) -> None:
    assert "it is older than" in why_kept(gone, replace(lock(), created="yesterday"))


def test_a_lock_of_a_running_terraform_is_kept(running: Terraform) -> None:
    assert "still runs" in why_kept(running, lock())


def test_lock_is_kept_while_a_user_runs_terraform_in_the_folder(gone: Terraform, tmp_path: Path) -> None:
    program = tmp_path / "terraform"  # the kernel names a process after its executable file
    program.symlink_to("/bin/sleep")
    program = program if program.resolve().name != "busybox" else pytest.skip("sleep is part of busybox")
    with subprocess.Popen([str(program), "1000"], cwd=gone.folder.path) as child:
        try:
            assert why_kept(gone, lock()) == f"terraform runs with pid {child.pid}"
        finally:
            child.kill()
