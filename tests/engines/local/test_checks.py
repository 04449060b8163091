"""Checks find problems of a machine, and leave no files behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from windlass.engines.checks import Check
from windlass.engines.local import checks
from windlass.runs.context import Context
from windlass.runs.store import Store


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        {"HOME": str(tmp_path), "WINDLASS_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}, tmp_path
    )


def one(found: checks.Result) -> Check:
    return Check("", *found)


def python_that(tmp_path: Path, script: str) -> Context:
    """Returns a context whose active environment has this shell script as its Python."""
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Context({"VIRTUAL_ENV": str(tmp_path / "env")}, tmp_path)


def test_missing_home_is_not_created(context: Context) -> None:
    assert one(checks._home(context)).level == "ok"
    assert one(checks._record(context)).level == "ok"
    assert list(context.cwd.iterdir()) == []


def test_a_home_below_a_file_cannot_be_written(context: Context) -> None:
    (context.cwd / "home").write_text("")
    check = one(checks._home(Context({"WINDLASS_HOME": str(context.cwd / "home" / "below")}, context.cwd)))
    assert check.level == "fail"
    assert "WINDLASS_HOME" in check.fix


def test_little_space_warns_and_no_space_fails(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(context.cwd)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    assert one(checks._home(context)).level == "warn"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    assert one(checks._home(context)).level == "fail"


def test_valid_record_is_counted_and_unchanged(context: Context) -> None:
    Store(context.home).close()
    assert one(checks._record(context)).found.endswith("WAL; 0 runs")
    with context.store() as store:
        store.create("digits-1", name="digits", target="local", output_dir="/x", plan="{}", time=0.0).close()
    assert one(checks._record(context)).found.endswith("WAL; 1 run")
    assert not [path for path in context.home.iterdir() if path.name.startswith("tmp")]


def test_damaged_record_fails_with_command_as_fix(context: Context) -> None:
    context.home.mkdir()
    with sqlite3.connect(context.home / "record.db") as database:
        database.execute("CREATE TABLE runs (id)")
    database.close()
    path = context.home / "record.db"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    check = one(checks._record(context))
    assert check.level == "fail"
    assert check.fix.startswith("move it away: mv ")


def test_environment_without_torch_warns(tmp_path: Path) -> None:
    context = python_that(tmp_path, "echo 3.12.1; echo 'no No module named torch'")
    check = one(checks._interpreter(context))
    assert check.level == "warn"
    assert "3.12.1" in check.found
    assert "pip install torch" in check.fix


def test_torch_and_its_devices_are_named(tmp_path: Path) -> None:
    context = python_that(tmp_path, "echo 3.12.1; echo some noise; echo 2.9.0 12.8 4")
    check = one(checks._interpreter(context))
    assert (check.level, check.fix) == ("ok", "")
    assert "torch 2.9.0 (CUDA 12.8, 4 usable)" in check.found


def test_broken_python_is_reported_with_last_line_of_output(tmp_path: Path) -> None:
    context = python_that(tmp_path, "echo 'libtorch.so: bad' >&2; exit 1")
    check = one(checks._interpreter(context))
    assert check.level == "warn"
    assert "libtorch.so: bad" in check.found


def test_hanging_python_is_killed_after_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ASK_SECONDS", 0.3)
    context = python_that(tmp_path, "exec sleep 30")
    assert "took longer" in one(checks._interpreter(context)).found


def test_missing_environment_fails(tmp_path: Path) -> None:
    check = one(checks._interpreter(Context({"VIRTUAL_ENV": str(tmp_path / "gone")}, tmp_path)))
    assert check.level == "fail"


def test_check_that_raises_does_not_stop_other_checks(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Context) -> checks.Result:
        raise RuntimeError("an odd machine")

    monkeypatch.setattr(checks, "CHECKS", {**checks.CHECKS, "memory": broken, "script's python": broken})
    found = {check.name: check for check in checks.checks(context)}
    assert found["memory"].level == "warn"
    assert "an odd machine" in found["memory"].found
    assert "git" in found


def test_home_of_another_user_fails(context: Context) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder to another user")
    Store(context.home).close()
    assert one(checks._home(context)).level == "ok"
    for foreign in (context.home / "runs", context.home):
        os.chown(foreign, 65534, -1)
        check = one(checks._home(context))
        assert (check.level, "WINDLASS_HOME" in check.fix) == ("fail", True)
        assert f"{foreign} belongs to user" in check.found
        os.chown(foreign, 0, -1)
