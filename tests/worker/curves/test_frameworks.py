"""Curves of unchanged scripts: what real libraries write gets into the metrics of a real run, each value once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.runs.event_files import PREFIX, write_event_file
from windlass.runs.metrics import Series, read_metrics
from windlass.worker.event_file import EventFile

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = Path(__file__).with_name("scripts")
PYTHON = ROOT / ".cache" / "curves-env" / "bin" / "python"
LOADED = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False)
found.Reload()
points = {tag: [[e.wall_time, e.step, e.value] for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
for tag in found.Tags()["tensors"]:
    events = [(e, make_ndarray(e.tensor_proto)) for e in found.Tensors(tag)]
    if events[0][1].dtype == "float32":
        points[tag] = [[e.wall_time, e.step, array.item()] for e, array in events]
print(json.dumps(points))
"""
WRITTEN = """
import sys
from torch.utils.tensorboard import SummaryWriter

with SummaryWriter(sys.argv[1]) as writer:
    for step in range(100):
        writer.add_scalar("loss", 1 / (step + 1), step, walltime=1e9 + step)
        writer.add_scalar("lr", 10.0 ** -step, step * 10**9, new_style=True)
    writer.add_text("text", "x")
"""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]  # the first one may install the libraries


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    done = subprocess.run(["bash", "tools/curves-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def curves_of(folder: Path, script: str, *options: str) -> dict[tuple[str, str], Series]:
    """Runs a script in a folder, and returns the series of its run that were read from files."""
    (folder / "train.py").write_text((SCRIPTS / script).read_text())
    environ = {**os.environ, "WINDLASS_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "windlass", "run", "--python", str(PYTHON), "--set", "start=cold", *options]
    done = subprocess.run([*command, "train.py"], cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = (folder / "home" / "runs").glob("*/metrics.jsonl")
    return {(one.source, one.name): one for one in read_metrics(path) if one.source not in ("log", "node")}


def test_curves_of_the_trainer_go_on_in_the_next_attempt(tmp_path: Path) -> None:
    loss = curves_of(tmp_path, "trainer.py", "--set", "restarts=1")["trainer", "loss"]
    assert loss.steps == tuple(range(1, 21))  # the steps 11 to 15 of the first attempt were not saved
    assert loss.attempts == (1,) * 10 + (2,) * 10
    state = json.loads((tmp_path / "out" / "checkpoint-20" / "trainer_state.json").read_text())
    expected = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert loss.values == pytest.approx(expected, rel=1e-6)


def test_curves_of_lightning_have_each_row_once(tmp_path: Path) -> None:
    found = curves_of(tmp_path, "lightning_csv.py")
    assert found["lightning", "train_loss"].steps == tuple(range(20))
    assert found["lightning", "val_loss"].steps == (9, 19)


def test_curves_of_keras_have_each_epoch_once(tmp_path: Path) -> None:
    found = curves_of(tmp_path, "keras_csv.py")
    assert found["csv", "loss"].steps == found["csv", "mae"].steps == (0, 1, 2, 3, 4)


def test_curves_of_event_files_mark_a_restart(tmp_path: Path) -> None:
    found = curves_of(tmp_path, "summary_writer.py", "--set", "restarts=1")
    loss = found["tensorboard", "loss"]
    assert loss.steps == (*range(30), *range(20, 50))
    assert loss.attempts == (1,) * 30 + (2,) * 30
    assert loss.values == pytest.approx([1 / (step + 1) for step in loss.steps if step is not None], rel=1e-6)
    assert found["tensorboard", "accuracy_top1/accuracy"].values[-1] == pytest.approx(49 / 50)
    assert found["tensorboard", "as_tensor"].values == (3.0, 3.0)
    assert len(found) == 4


def test_tensorboard_reads_the_files_that_windlass_writes(tmp_path: Path) -> None:
    values = (0.5, math.inf, -1.25)
    one = Series("eval/größe", "report", 0, (1, 1, 2), (1.0, 2.0, 2.0), (1e9, 1e9 + 1, 1e9 + 2), values)
    write_event_file(tmp_path / f"{PREFIX}1.windlass", [one])
    loaded = subprocess.run([PYTHON, "-c", LOADED, tmp_path], capture_output=True, text=True, check=True, timeout=300)
    expected = [[time, step, value] for time, step, value in zip(one.times, one.steps, values, strict=True)]
    assert json.loads(loaded.stdout) == {"eval/größe": expected}


def test_windlass_reads_what_tensorboard_reads(tmp_path: Path) -> None:
    subprocess.run([PYTHON, "-c", WRITTEN, tmp_path], check=True, timeout=300)
    [path] = tmp_path.iterdir()
    found: dict[str, list[list[float | None]]] = {}
    with open(path, "rb") as file:
        for name, step, time, value in (point for points in EventFile().read(file) for point in points):
            found.setdefault(name, []).append([time, step, value])
    assert [len(found["loss"]), len(found["lr"])] == [100, 100]
    loaded = subprocess.run([PYTHON, "-c", LOADED, tmp_path], capture_output=True, text=True, check=True, timeout=300)
    assert found == json.loads(loaded.stdout)
