"""Runs wait for slots and for other runs, with real processes: kills, stops, resumes, and output of commands."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.machine import Machine, kill
from tests.helpers.until import until

from windlass.engines.local.admission import queue_folder
from windlass.engines.local.slots import SlotQueue
from windlass.runs.private import BESIDE_RECORD, FOLDERS, RECORD

pytestmark = pytest.mark.slow

WAITS = """
import os, sys, time
print("slots", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def queue(machine: Machine) -> Machine:
    machine.write("targets.yaml", "local: {kind: local, slots: 2}\n")
    machine.write("waits.py", WAITS)
    return machine


def start(machine: Machine, name: str, *options: str, code: int = 0) -> str:
    """Starts a detached run that ends with `code` once a file of its name exists; returns its id."""
    done = machine.windlass("run", "waits.py", "--detach", "-q", "--name", name, *options, "--", name, str(code))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def waiting(machine: Machine, name: str) -> list[str]:
    """Returns the ids of a job's waiting runs."""
    listed: list[dict[str, Any]] = json.loads(machine.windlass("ps", "-o", "json").stdout)
    return [one["id"] for one in listed if one["name"] == name and one["waits_for"]]


def phase(machine: Machine, run: str) -> str:
    return str(machine.status(run)["phase"])


def holders(machine: Machine) -> dict[str, tuple[int, ...]]:
    """Returns the slots of each run, as another run would read them."""
    others = SlotQueue(queue_folder(machine.home, "local"), "probe").others(2)
    return {one.run_id: one.slots for one in others if one.slots}


def end_processes(machine: Machine, run: str, *, supervisor: bool = True, nodes: bool = True) -> None:
    """Kills the supervisor and the node workers of one run."""
    for process in machine.processes():
        is_of_run = f" {run} " in process.command or f"/{run}/" in process.command
        of_rank = process.environ.get("WINDLASS_RUN_ID") == run and process.rank is not None
        if (supervisor and is_of_run and process.is_supervisor) or (
            nodes and (of_rank or (is_of_run and process.node is not None))
        ):
            kill(process.pid)


def test_slots_of_killed_run_are_released_when_its_nodes_have_ended(queue: Machine) -> None:
    first = start(queue, "a", "--nodes", "2")
    until(lambda: len(queue.ranks()) == 2, queue.processes)
    second = start(queue, "b")
    until(lambda: queue.status(second)["waits_for"], lambda: queue.status(second))
    why = json.loads(queue.windlass("why", second, "-o", "json").stdout)
    assert why["verdict"] == "queue-slots"
    assert f"none is free: {first} holds 2" in why["summary"]
    end_processes(queue, first, nodes=False)
    until(lambda: not [one for one in queue.supervisors() if f" {first} " in one.command], queue.supervisors)
    assert holders(queue) == {first: (0, 1)}
    end_processes(queue, first)
    until(lambda: phase(queue, second) == "training", lambda: queue.status(second))
    assert queue.ended(first)["phase"] in ("failed", "lost")
    (queue.folder / "b").touch()
    assert queue.ended(second)["phase"] == "succeeded"
    assert holders(queue) == {}
    assert {path.name for path in queue.home.iterdir()} <= {RECORD, *BESIDE_RECORD, *FOLDERS}


def test_waiting_run_can_be_stopped_and_resumed_and_does_not_block_others_when_killed(queue: Machine) -> None:
    holder = start(queue, "a", "--nodes", "2")
    until(lambda: len(queue.ranks()) == 2, queue.processes)
    stopped, killed, last = start(queue, "b"), start(queue, "c"), start(queue, "d", "--nodes", "2")
    until(lambda: all(queue.status(run)["waits_for"] for run in (stopped, killed, last)), queue.supervisors)
    follower = queue.start("run", "waits.py", "--name", "e", "--", "e", "0")
    left = until(lambda: waiting(queue, "e"), queue.supervisors)
    follower.send_signal(signal.SIGINT)
    assert (follower.communicate()[0], follower.returncode) == ("", 130)
    assert phase(queue, left[0]) == "queued"  # without a terminal, Ctrl-C detaches
    assert queue.windlass("stop", stopped, left[0]).returncode == 0
    assert phase(queue, stopped) == "stopped"
    end_processes(queue, killed)
    (queue.folder / "a").touch()
    until(lambda: last in holders(queue), lambda: holders(queue))
    assert queue.windlass("resume", stopped, "--detach").returncode == 0
    until(lambda: queue.status(stopped)["waits_for"], lambda: queue.status(stopped))
    assert phase(queue, stopped) == phase(queue, killed) == "queued"  # the command has started its supervisor again
    for name in "bcd":
        (queue.folder / name).touch()
    assert {queue.ended(run)["phase"] for run in (holder, stopped, killed, last)} == {"succeeded"}


def test_run_starts_after_success_of_others_and_not_after_failure(queue: Machine) -> None:
    good, bad = start(queue, "a"), start(queue, "b", code=3)
    behind, never = (
        start(queue, "c", "--after", "a"),
        start(queue, "d", "--after", good, "--after", bad),
    )
    until(lambda: all(queue.status(run)["waits_for"] for run in (behind, never)), queue.supervisors)
    why = json.loads(queue.windlass("why", behind, "-o", "json").stdout)
    assert (why["verdict"], why["summary"]) == ("queue-after", f"the run waits: it starts after the success of {good}")
    (queue.folder / "a").touch()
    until(lambda: phase(queue, behind) == "training", lambda: queue.status(behind))
    refused = queue.windlass("rm", good)
    assert refused.returncode == 2
    assert f"{good} is one after which {never} may still start" in refused.stderr
    pruned = json.loads(queue.windlass("prune", "--older-than", "0s", "-o", "json").stdout)
    assert [one["id"] for one in pruned["kept"]] == [good]
    for name in "bc":
        (queue.folder / name).touch()
    assert queue.ended(behind)["phase"] == "succeeded"
    ended = queue.ended(never)
    assert (ended["phase"], ended["attempts"]) == ("stopped", [])
    assert bad in ended["cause"]["summary"]
    why = json.loads(queue.windlass("why", never, "-o", "json").stdout)
    assert f"{bad}, after which it was to start, ended as failed" in why["summary"]


def test_run_that_cannot_wait_is_refused_immediately(queue: Machine, tmp_path: Path) -> None:
    large = queue.windlass("run", "waits.py", "--nodes", "3", "--", "a", "0")
    assert large.returncode == 2
    assert "3 ranks take 3 slots, and target local has 2" in large.stderr
    unknown = queue.windlass("run", "waits.py", "--after", "nothing", "--", "a", "0")
    assert (unknown.returncode, queue.windlass("ps", "-a", "-o", "json").stdout.strip()) == (102, "[]")
