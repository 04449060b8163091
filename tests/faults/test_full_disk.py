"""The disk under record and logs fills while a run goes on: the run does not notice, and the record catches up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.disk import fill, small_disk
from tests.faults.machine import Machine, kill, machine_in, until

NUM_RANKS = 4
SPEAKS = """
import os, signal, sys, time
from pathlib import Path
rank, marks = os.environ["RANK"], Path(os.environ["MARKS"])
signal.signal(signal.SIGTERM, lambda *_: ((marks / f"asked-{rank}").touch(), sys.exit(0)))
print("before", flush=True)
(marks / f"began-{rank}").touch()
while not (marks / "go").exists():
    time.sleep(0.02)
for line in range(2000):
    print("while it is full", line, "x" * 80)
if rank == os.environ.get("FAILS"):
    raise ValueError("rank fails")
while (marks / "wait").exists():
    time.sleep(0.02)
print("after", flush=True)
(marks / f"finished-{rank}").touch()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with small_disk(tmp_path / "home", 3072), machine_in(tmp_path) as made:
        yield made


def begin(machine: Machine, **env: str) -> Path:
    """A detached run of 2 nodes × 2 ranks that all wait for `go`; gives the folder of their marks."""
    marks = machine.folder / "marks"
    marks.mkdir()
    machine.write("speak.py", SPEAKS)
    job = {"name": "full", "run": "speak.py", "nodes": 2, "procs_per_node": 2, "grace": "1s", "python": sys.executable}
    machine.write("job.yaml", json.dumps({**job, "env": {"MARKS": str(marks), **env}}))
    done = machine.windlass("run", "--detach")
    assert done.returncode == 0, done.stderr
    until(lambda: len(list(marks.glob("began-*"))) == NUM_RANKS, "not begun")
    until(lambda: machine.status()["phase"] == "training", "nothing was heard of it")
    return marks


def check_history(events: list[dict[str, Any]]) -> None:
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events].count("end") == 1
    assert events[-1]["kind"] == "end"


def missing_bytes(events: list[dict[str, Any]]) -> dict[int, int]:
    """By rank, as the warnings say."""
    found = {}
    for event in events:
        if event["kind"] == "warning" and "no space left" in event["message"]:
            words = event["message"].replace(":", "").replace(",", "").split()
            found[int(words[1])] = next(int(word) for word in words[2:] if word.isdigit())
    return found


def test_the_run_goes_on_and_its_record_ends_true_once_there_is_space(machine: Machine) -> None:
    marks = begin(machine)
    watching = machine.start("run", "--quiet", "--set", "nodes=1", "--set", "procs_per_node=1")
    until(lambda: len(machine.supervisors()) == 2, "the second run has not begun")
    until(lambda: len(machine.ranks()) == NUM_RANKS + 1, "the second run has not begun")
    filler = fill(machine.home)
    (marks / "go").touch()
    until(lambda: len(list(marks.glob("finished-*"))) == NUM_RANKS, "the full disk has stopped the ranks")
    until(lambda: not machine.ranks(), "the ranks have not ended")
    assert all(status["ended_at"] is None for status in json.loads(machine.windlass("ps", "-o", "json").stdout))
    filler.unlink()
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, out + err
    for run in json.loads(machine.windlass("ps", "-o", "json").stdout):
        status = machine.ended(run["id"])
        assert status["phase"] == "succeeded"
        assert {state["exit_code"] for state in status["ranks"]} == {0}
        check_history(machine.events(run["id"]))
    machine.empty()


def test_the_logs_keep_what_they_could_and_the_history_says_how_much_is_missing(machine: Machine) -> None:
    marks = begin(machine)
    filler = fill(machine.home)
    (marks / "wait").touch()
    (marks / "go").touch()
    until(lambda: machine.status()["phase"] == "training", "the record cannot be read")
    logs = list(machine.home.glob("runs/*/attempt-1/rank-*.log"))
    until(lambda: all(path.stat().st_size % 4096 == 0 for path in logs), "the logs have not filled their last page")
    filler.unlink()
    (marks / "wait").unlink()
    assert machine.ended()["phase"] == "succeeded"
    missing = missing_bytes(machine.events())
    text = "".join(f"while it is full {line} {'x' * 80}\n" for line in range(2000))
    for rank in range(NUM_RANKS):
        kept = machine.windlass("logs", "--rank", str(rank)).stdout
        assert kept.startswith("before\n")
        assert len(kept) + missing.get(rank, 0) == len(f"before\n{text}after\n")
    assert missing
    merged = machine.windlass("logs")
    assert merged.returncode == 0
    assert merged.stdout.count("before") == NUM_RANKS


@pytest.mark.slow
def test_a_failing_rank_ends_the_others_though_nothing_can_be_written(machine: Machine) -> None:
    marks = begin(machine, FAILS="3")
    (marks / "wait").touch()
    filler = fill(machine.home)
    (marks / "go").touch()
    until(lambda: not machine.ranks(), lambda: f"still there: {machine.ranks()}")
    filler.unlink()
    status = machine.ended()
    assert (status["phase"], status["cause"]["rank"]) == ("failed", 3)
    assert "rank fails" in status["cause"]["summary"]
    check_history(machine.events())
    machine.empty()


@pytest.mark.slow
def test_a_run_can_be_stopped_on_a_full_disk(machine: Machine) -> None:
    marks = begin(machine)
    filler = fill(machine.home)
    done = machine.windlass("stop", "--no-wait")
    assert done.returncode == 0, done.stderr
    until(lambda: len(list(marks.glob("asked-*"))) == NUM_RANKS, "the ranks were not asked")
    until(lambda: not machine.ranks(), "the ranks have not ended")
    filler.unlink()
    assert machine.ended()["phase"] == "stopped"
    check_history(machine.events())
    machine.empty()


def test_a_supervisor_killed_on_a_full_disk_loses_nothing(machine: Machine) -> None:
    marks = begin(machine)
    filler = fill(machine.home)
    (marks / "go").touch()
    until(lambda: not machine.ranks(), "the ranks have not ended")
    (keeper,) = machine.supervisors()
    kill(keeper.pid)
    until(lambda: not machine.supervisors(), "the supervisor lives")
    done = machine.windlass("status")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no space left for the record in {machine.home}")
    filler.unlink()
    status = machine.ended()
    assert status["phase"] == "succeeded"
    assert {state["exit_code"] for state in status["ranks"]} == {0}
    check_history(machine.events())
    machine.empty()
