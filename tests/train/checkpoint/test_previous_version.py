"""Checkpoints written by the previous version, by one rank and by two, are restored bit for bit.

`previous_version/checkpoints.tar.xz` was created once, by the code of commit 76731ca, with the parts below.
"""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.chunks import export_safetensors
from windlass.train.checkpoint.export import read_tensors
from windlass.train.checkpoint.files import examine, list_checkpoints
from windlass.train.sampler import BatchSampler


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("previous_version") / "checkpoints.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize("ranks", ["one", "two"])
def test_state_of_the_previous_version_is_restored_exactly(folder: Path, ranks: str) -> None:
    expected = json.loads((folder / "expected.json").read_text())[ranks]
    [found] = list_checkpoints(folder / ranks)
    assert examine(found) == []
    torch.manual_seed(99)
    linear, norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
    model = nn.Sequential(linear, norm)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    sampler = BatchSampler(24, global_batch_size=6, seed=3)
    mine: dict[Any, Any] = {}
    saved = Checkpoint(
        model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, mine=mine, folder=folder / ranks
    )
    assert saved.restore() == 3
    assert [random.random(), float(np.random.rand()), torch.rand(1).item()] == expected["random"]
    assert linear.weight.tolist() == expected["weight"]
    assert optimizer.state[linear.weight]["exp_avg"].tolist() == expected["exp_avg"]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert norm.state_dict()["num_batches_tracked"].item() == 3
    assert (scheduler.last_epoch, sampler.consumed) == (3, 18)
    assert torch.equal(mine.pop("half"), torch.arange(5).half())
    assert mine.pop("array").tolist() == [0, 1, 2]
    assert mine == {"tuple": (1, float("inf")), 7: b"bytes", "dtype": torch.bfloat16, "none": None}
    saved.step()
    assert saved.save(wait=True)
    saved.close()
    assert [one.attempt for one in list_checkpoints(folder / ranks)] == [2, 1]


def test_checkpoint_of_the_previous_version_is_exported(folder: Path, tmp_path: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())["two"]
    export_safetensors(list_checkpoints(folder / "two")[0], tmp_path / "model.safetensors")
    tensors = read_tensors(str(tmp_path / "model.safetensors"))
    assert sorted(tensors) == [
        "0.bias",
        "0.weight",
        "1.bias",
        "1.num_batches_tracked",
        "1.running_mean",
        "1.running_var",
        "1.weight",
    ]
    assert tensors["0.weight"].tolist() == expected["weight"]
