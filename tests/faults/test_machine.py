"""What these tests leave behind: nothing, whatever of a run was forked from a warm process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.engines.local.warm.forks import trust
from tests.helpers.machine import Machine
from tests.helpers.until import until

SCRIPT = """
import os, time
open(f"rank-{os.environ['RANK']}", "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_warm_ranks_are_ended_with_the_machine(machine: Machine) -> None:
    machine.write("train.py", SCRIPT)
    job = {"name": "left", "run": "train.py", "procs_per_node": 2, "python": sys.executable, "warm": ["json"]}
    machine.write("job.yaml", json.dumps(job))
    trust(machine.home, "json")
    assert machine.windlass("run", "--detach").returncode == 0
    marks = [machine.folder / f"rank-{rank}" for rank in range(2)]
    until(lambda: all(mark.exists() and mark.read_text() for mark in marks), "the ranks never came")
    assert [event["start"] for event in machine.events() if event["kind"] == "node"] == ["warm"]
    ranks = [int(mark.read_text()) for mark in marks]
    assert set(ranks) <= {process.pid for process in machine.everything()}
    machine.kill_all()
    until(lambda: not any(map(_works, ranks)), "warm ranks are left")


def _works(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes())  # a zombie has none
    except OSError:
        return False
