"""Start-up of the command line beside torchx: `--help`, `plan`, `ps` and `status` with 10,000 runs in the record.

.venv/bin/python bench/cli.py [RUNS] [--smoke]
"""

from __future__ import annotations

import json
import sqlite3
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common import BIN, ROOT, Cost, fresh_home, in_turn, machine, measure, peers, spread, start, table

from windlass.plan.plan import Plan, Policy
from windlass.runs.events import RECORD_VERSION, Event
from windlass.runs.record import fold
from windlass.runs.store import Store, _dump
from windlass.spec.job import Job

NUM_RECORDS = 10_000
SMOKE_RECORDS = 50
PEER = "torchx --help"
POLICY = Policy.of_job(Job(name="digits", run="train.py"))
PLAN = Plan("digits-00000", "digits", "local", "local", "/tmp/x", 1, 1, POLICY, {}, ()).to_text()


def fill(home: Path, num_records: int) -> None:
    """So many ended runs with their events, by the statements that the store itself uses."""
    Store(home).close()
    now = time.time()
    runs, rows = [], []
    for number in range(num_records):
        began = now - 60 * number
        history = events(f"digits-{number:05}", began)
        status = fold(history)
        runs.append((status.id, began, status.times.ended_at, status.phase.value, _dump(status), PLAN))
        rows += [(status.id, event.seq, event.time, event.kind, json.dumps(event.data)) for event in history]
    with sqlite3.connect(home / "record.db") as db:
        columns = "version, id, created_at, ended_at, phase, status, plan"
        db.executemany(f"INSERT INTO runs ({columns}) VALUES ({RECORD_VERSION},?,?,?,?,?,?)", runs)
        db.executemany("INSERT INTO events (run_id, seq, time, kind, data) VALUES (?,?,?,?,?)", rows)
    db.close()


def events(run_id: str, began: float) -> list[Event]:
    """The events of a short run that succeeded."""
    told: list[tuple[float, str, dict[str, Any]]] = [
        (0.0, "created", {"id": run_id, "name": "digits", "target": "local", "output_dir": "/tmp/x", "restarts": 0}),
        (0.1, "attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "first"}),
        (0.2, "rank", {"rank": 0, "pid": 7}),
        (2.0, "phase", {"phase": "training"}),
        (3.0, "progress", {"step": 10, "total": 100, "loss": 0.5}),
        (8.9, "rank", {"rank": 0, "exit_code": 0}),
        (9.0, "end", {"phase": "succeeded", "exit_code": 0}),
    ]
    return [Event(seq, began + after, kind, data) for seq, (after, kind, data) in enumerate(told, 1)]


def main(runs: int, smoke: bool) -> None:
    """Print wall seconds and peak memory of each command, and their ratios to torchx."""
    windlass = BIN / "windlass"
    job = ROOT / "examples" / "01-digits" / "job.yaml"
    commands: dict[str, list[str | Path]] = {
        "python -c pass": [BIN / "python", "-c", "pass"],
        "windlass --help": [windlass, "--help"],
        "windlass plan": [windlass, "plan", job],
        "windlass ps": [windlass, "ps"],
        "windlass ps --all (10,000)": [windlass, "ps", "--all"],
        "windlass ps --all -o json": [windlass, "ps", "--all", "-o", "json"],
        "windlass status": [windlass, "status"],
    }
    if not smoke:
        commands = {PEER: [peers("torchx==0.7.0") / "torchx", "--help"], **commands}
    with fresh_home() as home:
        fill(home, SMOKE_RECORDS if smoke else NUM_RECORDS)
        results = in_turn({name: partial(measure, words) for name, words in commands.items()}, runs)
    costs = {name: [cost for cost in found if isinstance(cost, Cost)] for name, found in results.items()}
    base = costs.get(PEER) or next(iter(costs.values()))
    rows = [
        [
            name,
            spread([cost.wall_seconds for cost in found]),
            f"{median([c.wall_seconds for c in found]) / median([c.wall_seconds for c in base]):.2f}",
            f"{median([cost.peak_mb for cost in found]):.1f}",
            f"{median([c.peak_mb for c in found]) / median([c.peak_mb for c in base]):.2f}",
        ]
        for name, found in costs.items()
    ]
    ratio = f"× {'python' if smoke else 'torchx'}"
    table(f"Command line, medians of {runs} ({machine()})", ["command", "wall s", ratio, "peak MB", ratio], rows)


if __name__ == "__main__":
    start(main, runs=7)
