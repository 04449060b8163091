"""Start-up of the command line beside torchx: `--help`, `plan`, `ps` and `status` with 10,000 runs in the record.

.venv/bin/python bench/cli.py [RUNS]
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from functools import partial
from pathlib import Path

from common import BIN, ROOT, Cost, fresh_home, in_turn, machine, measure, median, peers, spread, table

from windlass.runs.record import Phase, Status
from windlass.runs.store import Store, _dump

NUM_RECORDS = 10_000


def fill(home: Path) -> None:
    """Ten thousand ended runs, by the statements that the store itself uses."""
    Store(home).close()
    now = time.time()
    plan = json.dumps({"engine": "local"})
    rows = []
    for number in range(NUM_RECORDS):
        began = now - 60 * number
        status = Status(f"digits-{number:05}", "digits", "local", Phase.SUCCEEDED, began, began + 9.0, "/tmp/x", 0,
                        began + 9.0, (), {Phase.STARTING: 2.0, Phase.TRAINING: 7.0})  # fmt: skip
        rows.append((status.id, began, began + 9.0, status.phase.value, _dump(status), plan))
    with sqlite3.connect(home / "record.db") as db:
        db.executemany("INSERT INTO runs (id, created_at, ended_at, phase, status, plan) VALUES (?,?,?,?,?,?)", rows)
    db.close()


def main(runs: int) -> None:
    windlass = BIN / "windlass"
    torchx = peers("torchx==0.7.0") / "torchx"
    job = ROOT / "examples" / "01-digits" / "job.yaml"
    commands: dict[str, list[str | Path]] = {
        "torchx --help": [torchx, "--help"],
        "python -c pass": [BIN / "python", "-c", "pass"],
        "windlass --help": [windlass, "--help"],
        "windlass plan": [windlass, "plan", job],
        "windlass ps": [windlass, "ps"],
        "windlass ps --all (10,000)": [windlass, "ps", "--all"],
        "windlass ps --all -o json": [windlass, "ps", "--all", "-o", "json"],
        "windlass status": [windlass, "status"],
    }
    with fresh_home() as home:
        fill(home)
        results = in_turn({name: partial(measure, words) for name, words in commands.items()}, runs)
    costs = {name: [cost for cost in found if isinstance(cost, Cost)] for name, found in results.items()}
    peer = costs["torchx --help"]
    rows = [
        [
            name,
            spread([cost.wall_seconds for cost in found]),
            f"{median([c.wall_seconds for c in found]) / median([c.wall_seconds for c in peer]):.2f}",
            f"{median([cost.peak_mb for cost in found]):.1f}",
            f"{median([c.peak_mb for c in found]) / median([c.peak_mb for c in peer]):.2f}",
        ]
        for name, found in costs.items()
    ]
    table(
        f"Command line, medians of {runs} ({machine()})", ["command", "wall s", "× torchx", "peak MB", "× torchx"], rows
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
