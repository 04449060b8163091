"""Modules that a checkpoint keeps: each is restored as it was saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.parts import make_parts
from windlass.train.checkpoint.snapshot import Snapshot


class Copying(nn.Linear):
    """A module whose state is a copy, as where a model keeps its tensors on a GPU and gives them on the CPU."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: value.clone() for name, value in super().state_dict(*args, **kwargs).items()}


def save(folder: Path, **parts: Any) -> None:
    saved = Checkpoint(folder=folder, **parts)
    saved.step()
    assert saved.save(wait=True)
    saved.close()


def restore(folder: Path, **parts: Any) -> None:
    saved = Checkpoint(folder=folder, **parts)
    assert saved.restore() == 1
    saved.close()


@pytest.mark.parametrize("make", [
    lambda: nn.Linear(4, 3), lambda: Copying(4, 3), lambda: nn.DataParallel(nn.Linear(4, 3)),
    lambda: nn.Sequential(nn.DataParallel(nn.Linear(4, 3))), lambda: nn.Sequential(Copying(4, 3)),
], ids=["plain", "copies", "DataParallel", "DataParallel inside", "copies inside"])  # fmt: skip
def test_a_module_is_restored_as_it_was_saved(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    before, after = make(), make()
    save(tmp_path, model=before)
    restore(tmp_path, model=after)
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(old, new)


def test_buffers_and_state_of_ones_own_may_differ_on_ranks_and_parameters_and_their_state_do_not() -> None:
    model: Any = torch.compile(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    parts = make_parts({"model": model, "optimizer": optimizer, "own": {"seen": torch.zeros(1)}})
    assert Snapshot(parts, {}, 0, {}, allow_pickle=False).differing() == [
        "model.1.num_batches_tracked", "model.1.running_mean", "model.1.running_var", "own.seen",
    ]  # fmt: skip


def test_a_loss_function_which_has_no_state_is_no_hindrance(tmp_path: Path) -> None:
    save(tmp_path, model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss())
    restore(tmp_path, model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss())


def test_data_parallel_is_exported_under_the_names_of_the_module_inside(tmp_path: Path) -> None:
    saved = Checkpoint(folder=tmp_path / "checkpoints", model=nn.DataParallel(nn.Linear(4, 3)))
    saved.export(tmp_path / "model.pt")
    saved.close()
    assert list(torch.load(tmp_path / "model.pt")) == ["weight", "bias"]
