"""A real training run is stopped, inspected, exported and resumed with a sequence of commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.machine import Machine
from tests.helpers.until import until

from windlass.runs.store import Store

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(4000, 8))
sampler = BatchSampler(len(data), global_batch_size=8, seed=0)
saved = Checkpoint(model=model, optimizer=optimizer, sampler=sampler, every=1000)
for epoch in saved.epochs(1):
    for (batch,) in saved.batches(DataLoader(data, batch_sampler=sampler)):
        if os.environ["WINDLASS_ATTEMPT"] == "1":  # it must not end before it is stopped
            time.sleep(0.03)
            while saved.steps >= 20 and not os.path.exists(sys.argv[1]):
                time.sleep(0.03)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
saved.close()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "last.pt"))
dist.barrier()
del model
dist.destroy_process_group()
"""


def ask(machine: Machine, *words: str, code: int = 0) -> Any:
    done = machine.windlass(*words, "-o", "json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_training_is_stopped_exported_and_resumed_without_loss(machine: Machine) -> None:
    machine.write("train.py", SCRIPT)
    stops = machine.folder / "stops"
    job = {"name": "life", "run": f"train.py {stops}", "nodes": 2, "python": sys.executable}
    machine.write("job.yaml", json.dumps(job))
    run = ask(machine, "run", "--detach")["id"]
    until(lambda: machine.status()["progress"].get("step", 0) >= 5, "no step")

    stop = machine.start("stop")
    with Store(machine.home) as store:
        until(lambda: store.status(run).supervision.stop_requested, "the stop is not recorded")
    stops.touch()
    told, _ = stop.communicate(timeout=200)
    (one,) = ask(machine, "checkpoints")["checkpoints"]
    assert "checkpoint  step " in told
    assert f"windlass resume {run}" in told
    assert (one["complete"], one["world_size"]) == (True, 2)
    assert machine.status()["checkpoint"]["step"] == one["step"]

    refused = machine.windlass("rm", run)
    assert (refused.returncode, "the only checkpoint" in refused.stderr) == (2, True)
    assert ask(machine, "checkpoints", "verify")["ok"]

    # Both export formats contain the model's state_dict.
    ask(machine, "checkpoints", "export", "model.pt")
    ask(machine, "checkpoints", run, "export", one["name"], "model.safetensors")
    exported = torch.load(machine.folder / "model.pt", weights_only=True)
    names = {name for name in header_of(machine.folder / "model.safetensors") if name != "__metadata__"}
    bare = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    bare.load_state_dict(exported)
    assert names == set(exported) == set(bare.state_dict())
    assert int(exported["1.num_batches_tracked"]) == one["step"]

    done = machine.windlass("resume", run, "--nodes", "1")
    assert done.returncode == 0, done.stderr
    status = machine.status()
    assert [attempt["world_size"] for attempt in status["attempts"]] == [2, 1]
    assert status["attempts"][1]["restored_step"] == one["step"]
    assert status["ledger"]["steps_redone"] == 0
    assert "redone" not in status["ledger"]["seconds"]
    assert status["ledger"]["seconds"]["idle"] > 0
    assert f"continues from step {one['step']}" in machine.windlass("events").stdout

    ask(machine, "checkpoints", "export", "end.pt")
    last, end = (
        torch.load(path, weights_only=True)
        for path in (Path(status["output_dir"]) / "last.pt", machine.folder / "end.pt")
    )
    assert all(torch.equal(last[name], end[name]) for name in last)
    assert machine.windlass("rm", run).returncode == 0


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return dict(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]))


UNSAVED = """
import os
import torch
from windlass.train.checkpoint import Checkpoint
from windlass.train.report import report

model = torch.nn.Linear(2, 2)
saved = Checkpoint(model=model, every=1000)
folder = os.environ["WINDLASS_CHECKPOINT_DIR"]
for epoch in saved.epochs(1):
    for step, _ in enumerate(saved.batches(range(68)), 1):
        report(step=step, total=68)
        if step in (21, 31, 41, 51, 61):
            saved.save(wait=True)
        if step == 25:  # as where a disk is unmounted, or full
            os.rename(folder, folder + ".kept")
            open(folder, "w").close()
"""


@pytest.mark.slow
def test_failed_checkpoint_saves_are_shown_by_every_command(machine: Machine) -> None:
    machine.write("train.py", UNSAVED)
    done = machine.windlass("run", "train.py", "--set", f"python={sys.executable}")
    assert done.returncode == 0, done.stderr
    words = "no checkpoint was saved after step 20: the last 5 saves failed, the newest at step 68: Not a directory"
    shown = {name: machine.windlass(name).stdout for name in ("status", "why", "ps")} | {"run": done.stderr}
    for name in ("run", "status"):
        assert words in " ".join(shown[name].split()), shown[name]
    assert "The run succeeded, but no checkpoint was saved after step 20" in shown["why"]
    assert "checkpoints-not-saved" in shown["ps"]
    for name in ("status", "ps"):
        [run] = found if isinstance(found := ask(machine, name), list) else [found]
        assert (run["phase"], run["checkpoint"]["step"]) == ("succeeded", 20)
        [warning] = run["warnings"]
        assert (warning["code"], warning["times"]) == ("checkpoints-not-saved", 5)
    assert ask(machine, "why")["verdict"] == "checkpoints-not-saved"
