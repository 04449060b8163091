"""A loop over epochs that is interrupted and resumed has the batches and random numbers of an uninterrupted one."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from windlass.train.checkpoint import Checkpoint

STEPS_IN_EPOCH = 5


def trained(
    folder: Path, end: int, *, begins: bool = False, seed: int | None = None, **parts: Any
) -> list[tuple[list[int], float]]:
    """Returns samples and a random number of each step until step `end`, where the state is saved and the process ends.

    With `begins`, an epoch is saved before its loader has drawn anything. With `seed`, its loader has a generator.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    data = TensorDataset(torch.arange(4 * STEPS_IN_EPOCH))
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    torch.manual_seed(3)
    saved = Checkpoint(folder=folder, every=10**6, model=nn.Linear(2, 2), **parts)
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


@pytest.mark.parametrize("seed", [None, 5], ids=["torch's generator", "a generator of its own"])
@pytest.mark.parametrize("end", [2, STEPS_IN_EPOCH, STEPS_IN_EPOCH + 1])
def test_shuffled_loader_without_a_position_continues_in_its_order(tmp_path: Path, end: int, seed: int | None) -> None:
    whole = trained(tmp_path / "whole", -1, seed=seed)
    assert len(whole) == 3 * STEPS_IN_EPOCH
    assert trained(tmp_path / "cut", end, seed=seed) + trained(tmp_path / "cut", -1, seed=seed) == whole


@pytest.mark.parametrize("seed", [None, 5])
def test_shuffled_loader_continues_after_two_interruptions_in_an_epoch(tmp_path: Path, seed: int | None) -> None:
    whole = trained(tmp_path / "whole", -1, seed=seed)
    ends = (STEPS_IN_EPOCH + 2, STEPS_IN_EPOCH + 4, -1)
    assert [step for end in ends for step in trained(tmp_path / "cut", end, seed=seed)] == whole


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (lambda: torch.Generator().manual_seed(1), lambda one: torch.rand(3, generator=one).tolist()),
        (lambda: numpy.random.default_rng(1), lambda one: one.random(3).tolist()),
        (lambda: numpy.random.RandomState(1), lambda one: one.normal(size=3).tolist()),
        (lambda: random.Random(1), lambda one: [one.gauss(0, 1) for _ in range(3)]),
    ],
    ids=["torch", "numpy", "numpy's older one", "python"],
)
def test_generators_of_the_script_continue_where_they_were(
    tmp_path: Path, make: Callable[[], Any], draw: Callable[[Any], list[float]]
) -> None:
    before, after = make(), make()
    draw(before)
    saved = Checkpoint(folder=tmp_path, every=10**6, numbers=before)
    saved.step()
    assert saved.save(wait=True)
    saved.close()
    again = Checkpoint(folder=tmp_path, numbers=after)
    assert again.restore() == 1
    again.close()
    assert draw(after) == draw(before)


def test_epoch_saved_before_its_first_batch_draws_the_same_numbers(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", -1, begins=True)
    cut = trained(tmp_path / "cut", STEPS_IN_EPOCH, begins=True)
    assert cut + trained(tmp_path / "cut", -1, begins=True) == whole


def test_left_loop_restores_the_sigterm_handler(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    saved = Checkpoint(folder=tmp_path, every=10**6, model=nn.Linear(2, 2))
    for _ in saved.epochs(3):
        for _ in saved.batches(range(3)):
            assert signal.getsignal(signal.SIGTERM) != before
            break
        break
    assert signal.getsignal(signal.SIGTERM) == before
    saved.close()
