"""Every value of a metric gets from the ranks of a real run into the file of the run's metrics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.machine import kill, lives, machine_in
from tests.helpers.until import until

from windlass.runs.metrics import Series, read_metrics

REPORTS = """
import windlass.train

for step in range(1, 201):
    windlass.train.report(step, total=200, loss=1 / step, lr=0.1)
"""


def metrics_of(folder: Path, script: str, job: str = "") -> dict[tuple[str, str, int], Series]:
    """Returns the series of a run of `script` with additional lines in its job file."""
    (folder / "train.py").write_text(script)
    (folder / "job.yaml").write_text(f"name: curves\nrun: train.py\nstart: cold\n{job}")
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "run", "job.yaml"],
        cwd=folder,
        env={**os.environ, "WINDLASS_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (folder / "home" / "runs").glob("*/metrics.jsonl")
    return {one.key: one for one in read_metrics(path)}


def test_200_calls_of_report_leave_200_points(tmp_path: Path) -> None:
    found = metrics_of(tmp_path, REPORTS)
    loss = found["loss", "report", 0]
    assert loss.steps == tuple(range(1, 201))
    assert loss.values == tuple(float(f"{1 / step:.8g}") for step in range(1, 201))
    assert list(loss.times) == sorted(loss.times)
    assert len(found["lr", "report", 0]) == 200


PRINTS = """
for step in range(10, 110, 10):
    print(f"step {step} loss {5 / step}")
"""

DIES_ONCE = """
import os, signal, time
import windlass.train

for step in range(1, 6):
    windlass.train.report(step, total=5, loss=step)
    time.sleep(0.06)
if os.environ["WINDLASS_ATTEMPT"] == "1":
    reported = os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "rank-0-reported")
    if os.environ["RANK"] == "0":
        open(reported, "w").close()
        time.sleep(60)
    while not os.path.exists(reported):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_printed_lines_are_points(tmp_path: Path) -> None:
    loss = metrics_of(tmp_path, PRINTS)["loss", "log", 0]
    assert loss.steps == tuple(range(10, 110, 10))
    assert loss.values == tuple(5 / step for step in range(10, 110, 10))


def test_both_attempts_of_a_killed_rank_are_in_the_series_of_both_ranks(tmp_path: Path) -> None:
    found = metrics_of(tmp_path, DIES_ONCE, "procs_per_node: 2\nrestarts: {max: 1}\n")
    for rank in (0, 1):
        loss = found["loss", "report", rank]
        assert loss.attempts == (1,) * 5 + (2,) * 5
        assert loss.values == (1, 2, 3, 4, 5) * 2
        assert found["step_seconds", "node", rank].attempts == (1, 2)
        assert all(0.05 < seconds < 5 for seconds in found["step_seconds", "node", rank].values)


WRITES_WHEN_STOPPED = """
import os, signal, time

log = os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "results.csv")

def save(*_):
    with open(log, "a") as file:
        file.write("2,0.25\\n")
    raise SystemExit(0)

if os.environ["WINDLASS_ATTEMPT"] == "1":
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, save)
        with open(log, "w") as file:
            file.write("epoch,loss\\n1,0.5\\n")
        time.sleep(60)
    while not os.path.exists(log):
        time.sleep(0.02)
    raise SystemExit(1)
"""


def test_what_a_rank_writes_after_the_failure_of_another_is_read(tmp_path: Path) -> None:
    found = metrics_of(tmp_path, WRITES_WHEN_STOPPED, "procs_per_node: 2\nrestarts: {max: 1}\n")
    assert found["loss", "csv", 0].values == (0.5, 0.25)


WAITS_HALFWAY = """
import os, sys, time
import windlass.train

for step in range(1, 201):
    windlass.train.report(step, total=200, loss=1 / step)
    if step == 100:
        while not os.path.exists(sys.argv[1]):
            windlass.train.report()
            time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_killed_supervisor_loses_and_doubles_no_point(tmp_path: Path) -> None:
    with machine_in(tmp_path) as machine:
        machine.write("train.py", WAITS_HALFWAY)
        done = machine.windlass("run", "train.py", "--detach", "--", str(tmp_path / "go"))
        assert done.returncode == 0, done.stderr
        [run] = (machine.home / "runs").iterdir()

        def steps() -> tuple[float | None, ...]:
            found = {one.key: one for one in read_metrics(run / "metrics.jsonl")}
            return found["loss", "report", 0].steps if ("loss", "report", 0) in found else ()

        until(lambda: steps() == tuple(range(1, 101)), lambda: f"not the first half: {steps()}")
        [supervisor] = machine.supervisors()
        kill(supervisor.pid)
        until(lambda: not lives(supervisor.pid))
        (tmp_path / "go").touch()
        assert machine.ended()["phase"] == "succeeded"
        assert steps() == tuple(range(1, 201))
