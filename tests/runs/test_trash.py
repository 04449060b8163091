"""A deletion that is killed at any step is completed by a later command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.disk import fill, small_disk
from tests.runs.test_full_disk import begin

from windlass.actions.runs import statuses
from windlass.runs.events import entry_of
from windlass.runs.store import Store

STEPS = {"renaming": "rename", "forgetting": "DELETE FROM runs", "committing": "COMMIT", "removing": "rmtree"}
DELETE = """
import os, shutil, signal, sqlite3, sys
from pathlib import Path
from windlass.runs.store import Store
home, step = Path(sys.argv[1]), sys.argv[2]

def die(event, arguments):
    if event == {"rename": "os.rename", "rmtree": "shutil.rmtree"}.get(step):
        os.kill(os.getpid(), signal.SIGKILL)

with Store(home) as store:
    if step in ("rename", "rmtree"):
        sys.addaudithook(die)
    else:
        store._db.set_trace_callback(lambda sql: sql.startswith(step) and os.kill(os.getpid(), signal.SIGKILL))
    store.delete("a-1")
"""


def fill_run(home: Path) -> None:
    with Store(home) as store:
        for run_id in ("a-1", "b-1"):
            writer = begin(store, run_id)
            writer.append(entry_of("end", {"phase": "stopped"}))
            writer.close()
        folder = store.run_dir("a-1") / "attempt-1"
        folder.mkdir()
        (folder / "rank-0.log").write_bytes(b"x" * 100_000)


def left_of(home: Path, run_id: str) -> list[str]:
    return [str(path) for path in home.rglob(f"*{run_id}*")]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_deletion_killed_at_any_step_is_finished_or_never_was(tmp_path: Path, step: str) -> None:
    fill_run(tmp_path)
    done = subprocess.run([sys.executable, "-c", DELETE, str(tmp_path), step], check=False, timeout=60)
    assert done.returncode == -9
    with Store(tmp_path) as store:
        runs = [status.id for status in store.statuses()]
        if step == "rename":  # nothing was changed
            assert sorted(runs) == ["a-1", "b-1"]
            assert (store.run_dir("a-1") / "attempt-1" / "rank-0.log").stat().st_size == 100_000
            store.delete("a-1")
        else:
            assert runs == ["b-1"]  # as soon as a command opens the store
            assert left_of(tmp_path, "a-1")
            store.empty_trash()
        assert left_of(tmp_path, "a-1") == []
        assert [status.id for status in store.statuses()] == ["b-1"]
        assert store.events("a-1") == []
        assert store.run_dir("b-1").is_dir()


def test_the_next_deletion_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    fill_run(tmp_path)
    subprocess.run([sys.executable, "-c", DELETE, str(tmp_path), "rmtree"], check=False, timeout=60)
    assert left_of(tmp_path, "a-1")
    with Store(tmp_path) as store:
        store.delete("b-1")
        assert store.count() == 0
    assert left_of(tmp_path, "a-1") + left_of(tmp_path, "b-1") == []
    assert not (tmp_path / "trash").exists()


def test_a_command_that_lists_all_runs_removes_what_a_killed_deletion_left(tmp_path: Path) -> None:
    fill_run(tmp_path)
    subprocess.run([sys.executable, "-c", DELETE, str(tmp_path), "rmtree"], check=False, timeout=60)
    with Store(tmp_path) as store:
        assert [status.id for status in statuses(store, last=20)] == ["b-1"]
        assert left_of(tmp_path, "a-1")
        assert [status.id for status in statuses(store)] == ["b-1"]
        assert left_of(tmp_path, "a-1") == []


def test_a_run_that_fills_the_disk_can_be_deleted(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 3072) as disk:
        fill_run(disk)
        with Store(disk) as store:
            (disk / "reserve").unlink()
            fill(disk).rename(store.run_dir("a-1") / "filler")
            store.delete("a-1")
            assert [status.id for status in store.statuses()] == ["b-1"]
            assert left_of(disk, "a-1") == []


def test_a_folder_that_cannot_be_renamed_is_removed_where_it_is(tmp_path: Path) -> None:
    fill_run(tmp_path)
    (tmp_path / "trash").write_text("in the way")
    with Store(tmp_path) as store:
        store.delete("a-1")
        assert not store.run_dir("a-1").exists()
        assert [path.name for path in (store.home / "runs").iterdir()] == ["b-1"]
