"""Creates checkpoints in this process, for tests of their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from windlass.train.checkpoint import Checkpoint
from windlass.train.checkpoint.files import examine, list_checkpoints


def build() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, torch.optim.Adam(model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()


def make(folder: Path | str, steps: int, *, every: int = 1, keep: int = 10, **parts: Any) -> list[torch.Tensor]:
    """Saves at each of `steps`, and returns the weights after each step."""
    model, optimizer = build()
    saved = Checkpoint(
        model=model, optimizer=optimizer, folder=folder, every=every, keep=keep, when_busy="wait", **parts
    )
    weights = []
    for _ in range(steps):
        train(model, optimizer)
        saved.step()
        weights.append(model.weight.detach().clone())
    saved.close()
    return weights


def flip(path: Path, at: int = -1) -> None:
    """Flips one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def steps_of(folder: Path) -> list[int]:
    """Returns the steps of the complete checkpoints in a folder."""
    return [found.step for found in list_checkpoints(folder) if found.complete and not examine(found)]
