"""Log throughput: a million lines over 8 ranks, ours beside `torchrun --log-dir`; then reading them back merged.

    .venv/bin/python bench/logs.py [RUNS] [--smoke]

The ranks run no torch: what is measured is the way of a line from a rank to its file. torchrun gives each rank a file
as its standard output, the cheapest way there is; ours goes through a pipe, is stamped with its time, and is looked at
for progress.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from common import BIN, fresh_home, in_turn, machine, start, table

from windlass.worker.process import adopt_orphans

RANKS = 8
LINES_PER_RANK = 125_000
SMOKE_LINES_PER_RANK = 2_000
PEER = "torchrun --log-dir"
SCRIPT = """
import json, os, sys, time
began = time.time()
for number in range(NUM_LINES):
    sys.stdout.write("rank %s line %d of the long story of a training run\\n" % (os.environ["RANK"], number))
    if number % 100 == 0: sys.stdout.flush()
sys.stdout.flush()
open(os.path.join(os.environ["STAMPS"], os.environ["RANK"]), "w").write(json.dumps([began, time.time()]))
"""


def writing_seconds(stamps: Path) -> float:
    """From the first line of the first rank to the last of the last."""
    times = [json.loads(path.read_text()) for path in stamps.iterdir()]
    assert len(times) == RANKS
    return float(max(end for _, end in times) - min(start for start, _ in times))


def run(command: list[str], stamps: Path, env: dict[str, str]) -> tuple[float, float]:
    """Seconds of writing, and CPU seconds of all processes, detached ones too."""
    before = os.times()
    environ = {**os.environ, **env, "STAMPS": str(stamps), "PYTHONUNBUFFERED": ""}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return writing_seconds(stamps), cpu


def ours(script: Path, num_lines: int) -> tuple[float, float]:
    with fresh_home(), tempfile.TemporaryDirectory() as stamps:
        command = [str(BIN / "windlass"), "run", "-q", str(script), "--procs-per-node", str(RANKS)]
        found = run(command, Path(stamps), {})
        check = subprocess.run([str(BIN / "windlass"), "logs"], check=True, capture_output=True)
        assert check.stdout.count(b"\n") == RANKS * num_lines
        return found


def torchrun(script: Path) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as logs, tempfile.TemporaryDirectory() as stamps:
        command = [
            str(BIN / "torchrun"),
            "--standalone",
            "--nproc-per-node",
            str(RANKS),
            "--log-dir",
            logs,
            "--redirects",
            "3",
            str(script),
        ]
        return run(command, Path(stamps), {})


def reading(script: Path) -> list[list[object]]:
    """Seconds to print what one run has written: merged with prefixes, one rank, and the last hundred lines."""
    with fresh_home(), tempfile.TemporaryDirectory() as stamps:
        run([str(BIN / "windlass"), "run", "-q", str(script), "--procs-per-node", str(RANKS)], Path(stamps), {})
        rows: list[list[object]] = []
        for name, options in {
            "all ranks, merged": [],
            "one rank": ["--rank", "3"],
            "the last 100": ["-n", "100"],
        }.items():
            times = []
            for _ in range(3):
                began = time.perf_counter()
                subprocess.run([str(BIN / "windlass"), "logs", *options], check=True, stdout=subprocess.DEVNULL)
                times.append(time.perf_counter() - began)
            rows.append([name, f"{median(times):.2f}"])
        return rows


def main(runs: int, smoke: bool) -> None:
    """Print lines a second of each launcher, then the seconds that reading them back takes."""
    num_lines = SMOKE_LINES_PER_RANK if smoke else LINES_PER_RANK
    adopt_orphans()  # a supervisor outlives its command; as our child its CPU time is counted too
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "talk.py"
        script.write_text(SCRIPT.replace("NUM_LINES", str(num_lines)))
        results = in_turn({PEER: lambda: torchrun(script), "windlass": lambda: ours(script, num_lines)}, runs)
        pairs = {name: [pair for pair in found if isinstance(pair, tuple)] for name, found in results.items()}
        peer = median([seconds for seconds, _ in pairs[PEER]])
        rows = []
        for name, found in pairs.items():
            seconds = median([pair[0] for pair in found])
            rate = RANKS * num_lines / seconds
            rows.append(
                [
                    name,
                    f"{seconds:.2f}",
                    f"{rate:,.0f}",
                    f"{peer / seconds:.2f}",
                    f"{median([pair[1] for pair in found]):.1f}",
                ]
            )
        header = ["launcher", "writing s", "lines/s", "× torchrun", "CPU s"]
        table(f"{RANKS * num_lines:,} lines over {RANKS} ranks, medians of {runs} ({machine()})", header, rows)
        table("Reading them back (`windlass logs`)", ["what", "s"], reading(script))


if __name__ == "__main__":
    start(main, runs=3)
