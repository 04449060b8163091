"""The disk under record and logs fills while a run goes on: its end is written, and what is missing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.disk import fill, small_disk
from tests.helpers.machine import Machine, kill, machine_in
from tests.helpers.until import until

pytestmark = pytest.mark.slow
NUM_RANKS = 4
SPEAKS = """
import os, signal, sys, time
from pathlib import Path
rank, marks = os.environ["WINDLASS_RANK"], Path(os.environ["MARKS"])
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


def write_job(machine: Machine, num_nodes: int, procs_per_node: int, **env: str) -> Path:
    """A job whose ranks all wait for `go`; gives the folder of their marks."""
    marks = machine.folder / f"marks-{num_nodes}"
    marks.mkdir()
    machine.write("speak.py", SPEAKS)
    shape = {"nodes": num_nodes, "procs_per_node": procs_per_node}
    job = {"name": "full", "run": "speak.py", **shape, "grace": "60s", "python": sys.executable}
    machine.write("job.yaml", json.dumps({**job, "env": {"MARKS": str(marks), **env}}))
    return marks


def begin(machine: Machine, **env: str) -> Path:
    """A detached run of 2 nodes × 2 ranks; gives the folder of its marks."""
    marks = write_job(machine, 2, 2, **env)
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


def test_runs_end_true_while_the_disk_is_full_and_say_what_their_logs_lack(machine: Machine) -> None:
    marks = begin(machine)
    of_second = write_job(machine, 1, 1)
    watching = machine.start("run", "--quiet")
    until((of_second / "began-0").exists, "the second run has not begun")
    filler = fill(machine.home)
    (marks / "go").touch()
    until(lambda: len(list(marks.glob("finished-*"))) == NUM_RANKS, "the full disk has stopped the ranks")
    (of_second / "go").touch()
    out, err = watching.communicate(timeout=240)
    assert watching.returncode == 0, out + err
    for run in json.loads(machine.windlass("ps", "--all", "-o", "json").stdout):
        status = machine.ended(run["id"])
        assert status["phase"] == "succeeded"
        assert {state["exit_code"] for state in status["ranks"]} == {0}
        assert status["logs_dropped"], machine.events(run["id"])
        assert all(lack["bytes"] > lack["lines"] > 0 for lack in status["logs_dropped"])
        for command in ("status", "why"):
            text = " ".join(machine.windlass(command, run["id"]).stdout.split())
            assert "missing from the logs: the disk was full" in text
        check_history(machine.events(run["id"]))
    machine.empty()
    filler.unlink()


def test_the_logs_keep_what_they_could_and_the_history_says_how_much_is_missing(machine: Machine) -> None:
    marks = begin(machine)
    filler = fill(machine.home)
    (marks / "wait").touch()
    (marks / "go").touch()
    said = "the run does not say yet what its logs lack"
    until(lambda: {lack["rank"] for lack in machine.status()["logs_dropped"]} == set(range(NUM_RANKS)), said)
    assert machine.status()["phase"] == "training"
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


@pytest.mark.parametrize("words", [(), ("--now",)])
def test_a_run_is_stopped_on_a_full_disk(machine: Machine, words: tuple[str, ...]) -> None:
    marks = begin(machine)
    filler = fill(machine.home)
    done = machine.windlass("stop", *words)
    assert done.returncode == 0, done.stderr
    assert " stopped " in done.stdout
    assert words or len(list(marks.glob("asked-*"))) == NUM_RANKS
    assert not machine.ranks()
    assert machine.status()["phase"] == "stopped"
    filler.unlink()
    check_history(machine.events())
    machine.empty()


def test_a_stop_is_not_waited_for_without_end_where_even_the_reserves_are_gone(machine: Machine) -> None:
    begin(machine)
    filler = fill(machine.home)
    for reserve in [machine.home / "reserve", *machine.home.glob("runs/*/attempt-1/*.reserve")]:
        reserve.unlink()
    fill(machine.home)  # as another program would take what is given back
    assert "full: the ends of runs are recorded" in machine.windlass("status").stdout
    began_at = time.monotonic()
    done = machine.windlass("stop", "--now")
    assert time.monotonic() - began_at < 200  # less than a supervisor waits for space
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "no space left for the record" in done.stderr
    assert "the last that was recorded is" in done.stderr
    machine.empty()
    filler.unlink()
    assert machine.ended()["phase"] == "stopped"
    check_history(machine.events())


def test_a_supervisor_killed_on_a_full_disk_loses_nothing(machine: Machine) -> None:
    marks = begin(machine)
    (marks / "wait").touch()
    filler = fill(machine.home)
    (marks / "go").touch()
    (supervisor,) = machine.supervisors()
    kill(supervisor.pid)
    until(lambda: not machine.supervisors(), "the supervisor lives")
    (marks / "wait").unlink()
    until(lambda: not machine.ranks(), "the ranks have not ended")
    until(lambda: not machine.nodes(), "the nodes could not say how their ranks ended")
    (machine.home / "reserve").unlink(missing_ok=True)  # as if its space had been taken by something else
    fill(machine.home)
    done = machine.windlass("status")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no space left for the record in {machine.home}")
    assert "Traceback" not in done.stderr
    filler.unlink()
    status = machine.ended()
    assert status["phase"] == "succeeded"
    assert {state["exit_code"] for state in status["ranks"]} == {0}
    check_history(machine.events())
    machine.empty()
