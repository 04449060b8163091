"""A run that another version of Windlass recorded is shown as unreadable, hides no other run, and can be removed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from windlass.runs.events import RECORD_VERSION
from windlass.runs.store import Store
from windlass.spec.job import Job

OTHER = RECORD_VERSION + 1


@pytest.fixture
def foreign(home: Path, recorded: Callable[..., str]) -> str:
    """Records a run of another version and returns its id."""
    run_id = recorded(Job(name="old", run="a.py"))
    with contextlib.closing(sqlite3.connect(home / "record.db")) as db, db:
        db.execute("UPDATE runs SET version = ?, status = '[]' WHERE id = ?", (OTHER, run_id))
    return run_id


def test_ps_reports_the_unreadable_run_and_lists_the_others(
    foreign: str, recorded: Callable[..., str], windlass: Call
) -> None:
    other = recorded(Job(name="new", run="a.py"))
    listed = windlass("ps")
    assert (listed.code, other in listed.out, foreign in listed.out) == (0, True, False)
    assert f"{foreign} is unreadable: another version of Windlass recorded it" in listed.err
    assert f"windlass rm {foreign} removes such a record" in listed.err
    assert [run["id"] for run in windlass("ps", "-o", "json").json] == [other]
    assert windlass("ps", "-q").err == ""


@pytest.mark.parametrize("command", ["status", "logs", "events", "why", "resume", "stop", "cost"])
def test_commands_on_an_unreadable_run_report_the_version_and_a_fix(command: str, foreign: str, windlass: Call) -> None:
    refused = windlass(command, foreign)
    assert refused.code == 1
    assert f"record version {OTHER}, and this one reads {RECORD_VERSION}" in refused.err
    assert f"use the Windlass that started it, or remove its record: windlass rm {foreign}" in refused.err


def test_rm_removes_an_unreadable_record_and_reports_possible_leftovers(
    foreign: str, windlass: Call, home: Path
) -> None:
    removed = windlass("rm", foreign)
    assert (removed.code, removed.out.strip()) == (0, f"{foreign} removed")
    assert "objects on its target may be left" in removed.err
    assert not (home / "runs" / foreign).exists()
    assert "unreadable" not in windlass("ps").err


def test_rm_refuses_a_run_with_a_live_supervisor(foreign: str, windlass: Call, home: Path) -> None:
    with Store(home) as store:
        lock = store._lock(foreign)
        try:
            refused = windlass("rm", "--force", foreign)
        finally:
            assert lock is not None
            store.close()
    assert refused.code == 2
    assert "supervised by another version of Windlass" in refused.err
    assert (home / "runs" / foreign).exists()
