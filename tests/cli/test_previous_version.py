"""What the previous version wrote - records, plans, logs, checkpoints - loads, and gives the same answers.

`previous_version/home.tar.xz` is the home of nine runs of that version: on this machine and on a Kubernetes cluster,
with restarts, a stop, a timeout and a checkpoint; `answers.json` in it is what that version printed of them.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call

import windlass

ARCHIVE = Path(__file__).with_name("previous_version") / "home.tar.xz"
RUNS = (
    "again-jkzn3",
    "elastic-3k4n6",
    "failed-7fw6m",
    "late-kt8hr",
    "ok-8ng4j",
    "pods-89c43",
    "podsok-s442q",
    "stopped-6rcnf",
    "torch-zvmkz",
)


@pytest.fixture
def answers(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Puts the old home in place, with the folders of this test; gives the old answers."""
    monkeypatch.setenv("WINDLASS_MACHINE", "old-machine")
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(home, filter="data")
    (home / "code").rename(tmp_path / "code")
    places = {
        "@HOME@": str(home),
        "@CODE@": str(tmp_path / "code"),
        "@PYTHON@": sys.executable,
        "@SRC@": str(Path(windlass.__file__).parents[1]),
    }

    def filled(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    for path in [path for path in home.rglob("*") if path.suffix in (".json", ".events", ".log", ".out", ".sql")]:
        path.write_text(filled(path.read_text()))
    database = sqlite3.connect(home / "record.db")
    database.executescript((home / "record.sql").read_text())
    database.execute("PRAGMA journal_mode=WAL")
    database.close()
    answered: dict[str, Any] = json.loads((home / "answers.json").read_text())
    return answered


def known(new: Any, old: Any) -> Any:
    """The new answer without the fields that the old version did not have."""
    if isinstance(new, list) and isinstance(old, list):
        return [known(*pair) for pair in itertools.zip_longest(new, old)]
    if isinstance(new, dict) and isinstance(old, dict):
        return {name: known(new[name], old[name]) for name in new if name in old}
    return new


def test_runs_are_listed(answers: dict[str, Any], windlass: Call) -> None:
    listed = {run["id"]: run["phase"] for run in windlass("ps", "--all", "-o", "json").json}
    assert listed == {run: answer["status"]["phase"] for run, answer in answers.items()}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_gives_the_same_answers(run: str, answers: dict[str, Any], windlass: Call, home: Path) -> None:
    old = answers[run]
    status = windlass("status", run, "-o", "json").json
    for field in ("phase", "exit_code", "created_at", "ended_at", "attempts", "phases", "ranks", "progress", "cause",
                  "checkpoint", "restarts_left", "ledger"):  # fmt: skip
        assert known(status[field], old["status"][field]) == old["status"][field], field
    events = [json.loads(line) for line in windlass("events", run, "-o", "json").out.splitlines()]
    assert events == [json.loads(json.dumps(event).replace("@HOME@", str(home))) for event in old["events"]]
    cost = windlass("cost", run, "-o", "json").json
    assert known(cost, old["cost"]) == old["cost"]
    why = windlass("why", run, "-o", "json").json
    assert (why["verdict"], why["rank"]) == (old["why"]["verdict"], old["why"]["rank"])
    assert windlass("logs", run).code == windlass("status", run).code == windlass("events", run).code == 0


def test_logs_are_those_of_all_ranks(answers: dict[str, Any], windlass: Call) -> None:
    lines = windlass("logs", "again-jkzn3", "--attempt", "2").out.splitlines()
    assert sum("step 5 loss 0.200" in line for line in lines) == 2


def test_a_checkpoint_is_verified(answers: dict[str, Any], windlass: Call) -> None:
    [found] = windlass("checkpoints", "torch-zvmkz", "-o", "json").json["checkpoints"]
    assert (found["step"], found["state"]) == (3, "complete")
    assert windlass("checkpoints", "torch-zvmkz", "verify").code == 0


@pytest.mark.parametrize("run", ["failed-7fw6m", "late-kt8hr"])
def test_a_run_is_resumed_by_its_stored_plan(run: str, answers: dict[str, Any], windlass: Call) -> None:
    result = windlass("resume", run, "-q")
    status = windlass("status", run, "-o", "json").json
    assert len(status["attempts"]) == 2, result.err


@pytest.mark.slow
def test_training_goes_on_from_an_old_checkpoint(answers: dict[str, Any], windlass: Call) -> None:
    windlass("resume", "torch-zvmkz", "-q")
    log = windlass("logs", "torch-zvmkz", "--attempt", "2").out
    assert log.count("restored step 3") == 2
