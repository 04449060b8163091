"""A loop over epochs that is cut off and resumed: it has the batches and random numbers of one that was not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from windlass.train.checkpoint import Checkpoint

STEPS_IN_EPOCH = 5


def trained(folder: Path, end: int, *, begins: bool = False) -> list[tuple[list[int], float]]:
    """Samples and a random number of each step until step `end`, where the state is saved and the process gone.

    With `begins`, an epoch is saved before its loader has drawn anything.
    """
    loader = DataLoader(TensorDataset(torch.arange(4 * STEPS_IN_EPOCH)), batch_size=4, shuffle=True)
    torch.manual_seed(3)
    saved = Checkpoint(folder=folder, every=10**6, model=nn.Linear(2, 2))
    seen = []
    for _ in saved.epochs(3):
        if begins:
            saved.save(wait=True)
        if saved.steps == end:
            break
        for (samples,) in saved.batches(loader):
            seen.append((samples.tolist(), float(torch.rand(()))))
            if saved.steps + 1 == end and not begins:
                saved.step()
                saved.save(wait=True)
                saved.close()
                return seen
    saved.close()
    return seen


@pytest.mark.parametrize("end", [2, STEPS_IN_EPOCH, STEPS_IN_EPOCH + 1])
def test_a_shuffled_loader_without_a_position_goes_on_in_its_order(tmp_path: Path, end: int) -> None:
    whole = trained(tmp_path / "whole", -1)
    assert len(whole) == 3 * STEPS_IN_EPOCH
    assert trained(tmp_path / "cut", end) + trained(tmp_path / "cut", -1) == whole


def test_so_it_does_when_it_is_cut_off_twice_in_an_epoch(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", -1)
    assert [step for end in (2, 4, -1) for step in trained(tmp_path / "cut", end)] == whole


def test_an_epoch_that_was_saved_before_its_first_batch_draws_the_same_numbers(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", -1, begins=True)
    cut = trained(tmp_path / "cut", STEPS_IN_EPOCH, begins=True)
    assert cut + trained(tmp_path / "cut", -1, begins=True) == whole


def test_a_loop_that_was_left_leaves_sigterm_as_it_was(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    saved = Checkpoint(folder=tmp_path, every=10**6, model=nn.Linear(2, 2))
    for _ in saved.epochs(3):
        for _ in saved.batches(range(3)):
            assert signal.getsignal(signal.SIGTERM) != before
            break
        break
    assert signal.getsignal(signal.SIGTERM) == before
    saved.close()
