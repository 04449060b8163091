"""Examples 05 and 06, and a script for accelerate: unchanged, with no launcher of their own, their progress seen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PYTHON = ROOT / ".cache" / "examples-env" / "bin" / "python"
WINDLASS = str(Path(sys.executable).with_name("windlass"))

ACCELERATED = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(256, 4)
targets = inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=16)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for epoch in range(1, 6):
    for inputs, targets in data:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}/5 loss {accelerator.reduce(loss.detach(), 'mean').item():.6f}")
weights = accelerator.gather(next(model.parameters()).detach().reshape(1, -1))
assert torch.equal(weights[0], weights[-1])
kind = accelerator.distributed_type.value
accelerator.print(f"{accelerator.num_processes} processes, {kind}, loss {loss.item():.3f}")
accelerator.end_training()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # the first one may install the libraries


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    done = subprocess.run(["bash", "tools/examples-env.sh"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class House:
    """A folder with records of its own."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        names = ("http_proxy", "HTTP_PROXY")  # no proxy is to stand between a rank and its node
        environ = {name: value for name, value in os.environ.items() if name not in names}
        self.environ = {**environ, "WINDLASS_HOME": str(home), "HF_HUB_OFFLINE": "1"}

    def call(self, *command: str, **environ: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env={**self.environ, **environ}, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call(WINDLASS, "status", "-o", "json"))
        return found

    def events(self) -> list[dict[str, Any]]:
        """What the first node of the newest run has said."""
        said = self.home / "runs" / self.status()["id"] / "attempt-1" / "node-0.events"
        return [json.loads(line) for line in said.read_text().splitlines()]

    def was_warm(self) -> bool:
        return any(event.get("start") == "warm" for event in self.events())

    def torchrun(self, name: str, *arguments: str) -> str:
        command = [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return self.call(*command, str(EXAMPLES / name / "train.py"), *arguments, OMP_NUM_THREADS="1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of all these tests, so that they share warm processes."""
    home = tmp_path_factory.mktemp("home")
    yield home
    House(home, home).call(WINDLASS, "warm", "stop")


@pytest.fixture
def house(tmp_path: Path, home: Path) -> House:
    return House(tmp_path, home)


def accuracy(output: str) -> float:
    found = re.search(r"test accuracy ([\d.]+) % .*world size 2\b", output)
    assert found is not None, output
    return float(found[1])


@pytest.mark.nightly  # CI resumes that trainer after a kill
def test_the_trainer_of_transformers_learns_and_tells_its_progress(house: House) -> None:
    assert accuracy(house.call(WINDLASS, "run", str(EXAMPLES / "05-hf-trainer" / "job.yaml"))) >= 97
    status = house.status()
    assert status["phase"] == "succeeded"
    progress = status["progress"]
    assert progress["step"] == progress["total"] == 400
    assert progress["eta_seconds"] == 0  # no bar says that: the Trainer has posted it
    assert progress["metrics"]["eval_accuracy"] >= 0.97
    told = [event["progress"] for event in house.events() if event["kind"] == "progress"]
    assert any(0 < step["step"] < 400 and step["total"] == 400 for step in told if "step" in step)
    assert {step["total"] for step in told if "total" in step} == {400}  # never that of an evaluation
    assert (Path(status["output_dir"]) / "model.safetensors").stat().st_size > 100_000
    assert house.was_warm(), house.call(WINDLASS, "events")


@pytest.mark.nightly
def test_without_bars_the_posts_alone_tell_the_progress(house: House) -> None:
    script = (EXAMPLES / "05-hf-trainer" / "train.py").read_text()
    silent = script.replace("logging_steps=20,", "logging_steps=10**6, disable_tqdm=True,")
    assert silent != script
    (house.folder / "train.py").write_text(silent)
    job = f"name: silent\nrun: train.py --epochs 0.2\nprocs_per_node: 2\npython: {PYTHON}\n"
    (house.folder / "job.yaml").write_text(job)
    output = house.call(WINDLASS, "run", "job.yaml")
    assert not re.search(r"/20 \[", output)  # saving the model has a bar of its own
    progress = house.status()["progress"]
    assert (progress["step"], progress["total"], progress["eta_seconds"]) == (20, 20, 0)


@pytest.mark.nightly
def test_the_script_for_transformers_runs_under_torchrun(house: House) -> None:
    accuracy(house.torchrun("05-hf-trainer", "--epochs", "0.2"))
    assert (house.folder / "outputs" / "model.safetensors").exists()


@pytest.mark.nightly
def test_lightning_trains_digits_and_its_bars_tell_the_progress(house: House) -> None:
    assert accuracy(house.call(WINDLASS, "run", str(EXAMPLES / "06-lightning" / "job.yaml"))) >= 97
    status = house.status()
    assert status["phase"] == "succeeded"
    progress = status["progress"]
    assert (progress["step"], progress["total"], progress["epoch"]) == (45, 45, 4)
    assert progress["loss"] < 1
    assert (Path(status["output_dir"]) / "model.ckpt").stat().st_size > 10_000
    assert house.was_warm(), house.call(WINDLASS, "events")


@pytest.mark.nightly
def test_the_script_for_lightning_runs_under_torchrun(house: House) -> None:
    accuracy(house.torchrun("06-lightning", "--epochs", "1"))
    assert (house.folder / "outputs" / "model.ckpt").exists()


@pytest.mark.nightly
def test_lightning_named_to_be_warm_starts_cold_and_says_why(house: House) -> None:
    (house.folder / "train.py").write_text("import lightning\nprint('imported')\n")
    (house.folder / "job.yaml").write_text(f"name: named\nrun: train.py\nwarm: [lightning]\npython: {PYTHON}\n")
    house.call(WINDLASS, "run", "job.yaml")
    # It is tried with the lowest priority: beside other tests it gets a small part of the cores.
    until(lambda: "without lightning" in house.call(WINDLASS, "warm", "ls"), "nothing has tried lightning", 600)
    house.call(WINDLASS, "run", "job.yaml")
    assert not house.was_warm()
    assert re.search(r"cold start: lightning: an import reads (LOCAL_)?RANK", house.call(WINDLASS, "events"))


@pytest.mark.nightly
def test_accelerate_needs_no_launcher_of_its_own(house: House) -> None:
    (house.folder / "train.py").write_text(ACCELERATED)
    job = f"name: accelerated\nrun: train.py\nnodes: 2\npython: {PYTHON}\n"
    (house.folder / "job.yaml").write_text(job + 'env: {ACCELERATE_USE_CPU: "true"}\n')
    assert re.search(r"2 processes, MULTI_CPU, loss 0\.0", house.call(WINDLASS, "run", "job.yaml"))
    assert house.status()["progress"]["epoch"] == 5
