"""What the doctor finds on machines that are not well, and that it leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.actions import doctor
from windlass.actions.edge import Edge
from windlass.engines.checking import Check
from windlass.runs.store import Store


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    return Edge({"HOME": str(tmp_path), "WINDLASS_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}, tmp_path)


def one(found: Iterator[Check]) -> Check:
    (check,) = found
    return check


def python_that(tmp_path: Path, script: str) -> Edge:
    """An edge whose active environment has this shell script for a Python."""
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Edge({"VIRTUAL_ENV": str(tmp_path / "env")}, tmp_path)


def test_a_home_that_is_not_there_yet_is_not_made(edge: Edge) -> None:
    assert one(doctor._home(edge)).level == "ok"
    assert one(doctor._record(edge)).level == "ok"
    assert list(edge.cwd.iterdir()) == []


def test_a_home_below_a_file_cannot_be_written(edge: Edge) -> None:
    (edge.cwd / "home").write_text("")
    check = one(doctor._home(Edge({"WINDLASS_HOME": str(edge.cwd / "home" / "below")}, edge.cwd)))
    assert check.level == "fail"
    assert "WINDLASS_HOME" in check.fix


def test_little_space_is_a_warning_and_none_a_failure(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(edge.cwd)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 30))
    assert one(doctor._home(edge)).level == "warn"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    assert one(doctor._home(edge)).level == "fail"


def test_a_good_record_is_counted_and_left_as_it_is(edge: Edge) -> None:
    Store(edge.home).close()
    assert one(doctor._record(edge)).found.endswith("WAL; 0 runs")
    assert not [path for path in edge.home.iterdir() if path.name.startswith("tmp")]


def test_a_damaged_record_is_a_failure_with_the_command_that_helps(edge: Edge) -> None:
    edge.home.mkdir()
    with sqlite3.connect(edge.home / "record.db") as database:
        database.execute("CREATE TABLE runs (id)")
    database.close()
    path = edge.home / "record.db"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    check = one(doctor._record(edge))
    assert check.level == "fail"
    assert check.fix.startswith("move it away: mv ")


def test_an_environment_without_torch_is_a_warning(tmp_path: Path) -> None:
    edge = python_that(tmp_path, "echo 3.12.1; echo 'no No module named torch'")
    check = one(doctor._interpreter(edge))
    assert check.level == "warn"
    assert "3.12.1" in check.found
    assert "pip install torch" in check.fix


def test_torch_and_its_devices_are_named(tmp_path: Path) -> None:
    edge = python_that(tmp_path, "echo 3.12.1; echo some noise; echo 2.9.0 12.8 4")
    check = one(doctor._interpreter(edge))
    assert (check.level, check.fix) == ("ok", "")
    assert "torch 2.9.0 (CUDA 12.8, 4 usable)" in check.found


def test_a_python_that_breaks_is_named_with_its_last_words(tmp_path: Path) -> None:
    edge = python_that(tmp_path, "echo 'libtorch.so: bad' >&2; exit 1")
    check = one(doctor._interpreter(edge))
    assert check.level == "warn"
    assert "libtorch.so: bad" in check.found


def test_a_python_that_hangs_is_left_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ASK_SECONDS", 0.3)
    edge = python_that(tmp_path, "exec sleep 30")
    assert "took longer" in one(doctor._interpreter(edge)).found


def test_an_environment_that_is_gone_is_a_failure(tmp_path: Path) -> None:
    check = one(doctor._interpreter(Edge({"VIRTUAL_ENV": str(tmp_path / "gone")}, tmp_path)))
    assert check.level == "fail"


def test_a_look_that_breaks_does_not_end_the_others(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Edge) -> Iterator[Check]:
        raise RuntimeError("an odd machine")

    monkeypatch.setattr(doctor, "_memory", broken)
    monkeypatch.setattr(doctor, "_interpreter", broken)
    found = {check.name: check for check in doctor.checks(edge)}
    assert found["memory"].level == "warn"
    assert "an odd machine" in found["memory"].found
    assert "git" in found


def test_a_home_of_another_user_is_a_failure_as_it_is_for_every_command(edge: Edge) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder to another user")
    Store(edge.home).close()
    assert one(doctor._home(edge)).level == "ok"
    for foreign in (edge.home / "runs", edge.home):
        os.chown(foreign, 65534, -1)
        check = one(doctor._home(edge))
        assert (check.level, "WINDLASS_HOME" in check.fix) == ("fail", True)
        assert f"{foreign} belongs to user" in check.found
        os.chown(foreign, 0, -1)
