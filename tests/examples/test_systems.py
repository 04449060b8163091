"""Example S0: heads from the archives of SCUT-HEAD to a detector, through kills, on any number of ranks."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.engines.kubernetes.planning.test_plan import FACTS, TARGET, blockers
from tests.examples.heads import NUM_IMAGES, PIXELS, write_archives
from tests.helpers.machine import Machine, kill
from tests.helpers.until import until

from windlass.code.selection import select
from windlass.engines.kubernetes.planning.plan import plan
from windlass.plan.steps import StageStep, UploadStep
from windlass.runs.store import Store
from windlass.spec.parse import parse_job
from windlass.train.checkpoint.export import read_tensors
from windlass.worker import process

SYSTEMS = Path(__file__).resolve().parents[2] / "examples" / "systems"
HEADS = SYSTEMS / "s0-head-detection"
TINY = ["--size", str(PIXELS), "--batch", "8"]
MADE = shutil.ignore_patterns("archives", "checkpoints", "data", "outputs", "__pycache__")
NUM_STEPS = 2 * (NUM_IMAGES - 4) // 8
"""Of an epoch."""


@pytest.fixture
def job(machine: Machine) -> Path:
    """The example beside a set that prepare.py has made of its archives."""
    shutil.copytree(HEADS, machine.folder, dirs_exist_ok=True, ignore=MADE)
    write_archives(machine.folder / "archives")
    subprocess.run([sys.executable, "prepare.py"], cwd=machine.folder, env=machine.environ, check=True)
    return machine.folder / "job.yaml"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """train.py, imported."""
    spec = importlib.util.spec_from_file_location("example_s0", HEADS / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def val_losses(said: str) -> list[float]:
    """One for each epoch that a log has."""
    return [float(found) for found in re.findall(r"epoch \d+: .* val loss ([\d.]+), \d+ of 16 heads found", said)]


def loss_of(weights: Path, data: Path, script: ModuleType) -> float:
    """Mean loss of the validation images, without ranks."""
    network = script.Detector()
    network.load_state_dict(read_tensors(str(weights)))
    images, grids = zip(*script.Heads(data, "val", PIXELS), strict=True)
    with torch.no_grad():
        return float(script.losses(network(torch.stack(images)), torch.stack(grids)).mean())


def test_each_system_has_a_page_that_the_list_names_and_jobs_that_parse() -> None:
    listed = (SYSTEMS / "README.md").read_text()
    assert {path.parent for path in SYSTEMS.glob("*/job.yaml")} == {HEADS, SYSTEMS / "s3-cifar10"}
    for job in SYSTEMS.glob("*/*.yaml"):
        parse_job(job.read_text(), str(job))
    for folder in (path for path in SYSTEMS.iterdir() if path.is_dir()):
        assert (folder / "prepare.py").exists()
        assert f"]({folder.name}/README.md)" in listed


def test_the_job_for_a_cluster_stages_its_set_and_takes_no_data_along(tmp_path: Path) -> None:
    path = HEADS / "cluster.yaml"
    made = plan(parse_job(path.read_text(), str(path)), TARGET, FACTS, "h-1", "boot")
    assert not blockers(made)
    assert [one.source for one in made.every(StageStep)] == ["s3://bucket/scut-head/"]
    assert [one.destination for one in made.every(UploadStep)] == ["s3://bucket/runs/h-1/"]
    shutil.copytree(HEADS, tmp_path / "job", ignore=MADE)
    (tmp_path / "job/data/heads").mkdir(parents=True)
    (tmp_path / "job/data/heads/data.yaml").write_text("train: images/train")
    travels = [one.name for one in select(tmp_path / "job", {"HOME": str(tmp_path)}).files]
    assert travels == [".gitignore", "README.md", "cluster.yaml", "job.yaml", "prepare.py", "train.py"]


def test_labels_become_a_grid_and_its_own_boxes_overlap_in_full(script: ModuleType) -> None:
    grid = script.make_grid("0 0.300000 0.550000 0.200000 0.100000\n0 1.000000 0.000000 0.100000 0.050000\n", 4)
    assert grid[0].nonzero().tolist() == [[0, 3], [2, 1]]
    assert grid[:, 2, 1].tolist() == pytest.approx([1, 0.2, 0.2, 0.2, 0.1])
    assert grid[:, 0, 3].tolist() == pytest.approx([1, 1, 0, 0.1, 0.05])
    assert torch.allclose(script.overlap(grid[None], grid[None]), grid[None, 0])
    moved = grid.clone()
    moved[1, 2, 1] += 0.4  # of a cell: half of its width
    assert float(script.overlap(moved[None], grid[None])[0, 2, 1]) == pytest.approx(1 / 3)


def test_an_image_that_needs_pillow_says_so(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.jpg").write_bytes(b"\xff\xd8\xff")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SystemExit, match=r"one\.jpg is read by Pillow, which is not installed: pip install pillow"):
        script.read_image(tmp_path / "one.jpg")


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly
def test_heads_are_learnt_though_a_node_is_killed_and_the_best_weights_are_uploaded(
    machine: Machine, job: Path, script: ModuleType, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    # So many that the node is killed before the end, also where this process waits for a core.
    settings = [f"run=train.py --epochs 120 {' '.join(TINY)}", "checkpoint.every=1s", "local.back_after=1h"]
    words = [word for one in [*settings, f"outputs=file://{store}"] for word in ("--set", one)]
    started = machine.windlass("run", str(job), *words, "--detach", "-o", "json")
    assert started.returncode == 0, started.stderr
    run = json.loads(started.stdout)["id"]

    with Store(machine.home) as records:
        until(lambda: [one for one in records.events(run) if one.kind == "checkpoint"], "no checkpoint was saved")
        held = [one.pid for one in machine.ranks() if kill(one.pid, signal.SIGSTOP)]
        assert len(held) >= 2, "it is over already"
        [node] = [one.data for one in records.events(run) if one.kind == "node" and one.data["node"] == 1]
        process.kill_session(node["pid"])
        for pid in held:
            kill(pid, signal.SIGCONT)
    ended = machine.ended(run)
    logs = machine.windlass("logs", run).stdout
    assert (ended["phase"], [one["world_size"] for one in ended["attempts"]]) == ("succeeded", [2, 1]), logs
    assert ended["attempts"][1]["restored_step"] > 0

    losses = val_losses(logs)
    assert len(losses) >= 120  # those of an epoch that was interrupted may be there twice
    assert min(losses) < losses[0] / 4
    uploaded = store / run
    assert machine.windlass("data", "verify", f"file://{uploaded}").returncode == 0
    best = loss_of(uploaded / "best.safetensors", machine.folder / "data/heads", script)
    assert best == pytest.approx(min(losses), abs=1e-3)


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly
def test_it_continues_without_windlass_on_another_number_of_ranks(machine: Machine, job: Path) -> None:
    del job

    def call(program: str, *words: str) -> str:
        command = [str(Path(sys.executable).with_name(program)), *words]
        done = subprocess.run(command, cwd=machine.folder, env=machine.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alone = call("python", "train.py", *TINY, "--epochs", "2")
    together = call("torchrun", "--standalone", "--nproc-per-node", "2", "train.py", *TINY, "--epochs", "4")
    assert f"checkpoint: step {2 * NUM_STEPS} restored" in together
    assert re.findall(r"world size \d", alone + together) == ["world size 1"] * 2 + ["world size 2"] * 2
    assert (len(val_losses(alone)), len(val_losses(together))) == (2, 2)
    assert read_tensors(str(machine.folder / "outputs/best.safetensors"))["0.weight"].shape == (16, 3, 3, 3)
