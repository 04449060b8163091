"""Trains a small network on scikit-learn's handwritten digits; the ranks average their gradients by MPI.

`mpirun -np 4 python train.py`, `python train.py` and `windlass run job.yaml` all run this one file.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from mpi4py import MPI
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST_IMAGES = 360
SEED = 0
WORLD = MPI.COMM_WORLD


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="times that each image is seen (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a step, all ranks (default: %(default)s)")
    args = parser.parse_args()

    torch.manual_seed(SEED)  # the same network on every rank
    images, labels = load()
    network = train(images[:-TEST_IMAGES], labels[:-TEST_IMAGES], args.epochs, args.batch_size)
    correct = count_correct(network, images[-TEST_IMAGES:], labels[-TEST_IMAGES:])
    if WORLD.rank == 0:
        path = save(network, Path(os.environ.get("WINDLASS_OUTPUT_DIR", "outputs")))
        of_all = f"{correct} of {TEST_IMAGES} images, world size {WORLD.size}"
        print(f"test accuracy {100 * correct / TEST_IMAGES:.1f} % ({of_all})")
        print(f"model saved to {path}", flush=True)


def load() -> tuple[Tensor, Tensor]:
    """1797 images of 64 pixels in an order that is the same on every rank."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = torch.tensor(digits.images[order], dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(digits.target[order])


def train(images: Tensor, labels: Tensor, epochs: int, batch_size: int) -> nn.Module:
    network = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        losses = [step(network, optimizer, images, labels, batch) for batch in order.split(batch_size)]
        mean = WORLD.allreduce(sum(losses) / len(losses)) / WORLD.size
        if WORLD.rank == 0:
            print(f"epoch {epoch}/{epochs}: loss {mean:.3f}", flush=True)
    return network


def step(network: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, batch: Tensor) -> float:
    """Each rank takes its share of the batch; the mean of the gradients is that of the whole batch."""
    share = batch[WORLD.rank :: WORLD.size]
    loss = F.cross_entropy(network(images[share]), labels[share]) if len(share) else network[0].weight.sum() * 0
    optimizer.zero_grad()
    loss.backward()
    average_gradients(network, weight=len(share) / len(batch))
    optimizer.step()
    return loss.item()


def average_gradients(network: nn.Module, weight: float) -> None:
    """One message for all parameters: MPI sums the buffer where it lies."""
    gradients = [parameter.grad for parameter in network.parameters()]
    buffer = torch.cat([gradient.flatten() for gradient in gradients]) * weight
    WORLD.Allreduce(MPI.IN_PLACE, buffer.numpy())
    for gradient, mean in zip(gradients, buffer.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


@torch.no_grad()
def count_correct(network: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Each rank looks at its share of the test images."""
    share = slice(WORLD.rank, None, WORLD.size)
    return WORLD.allreduce(int((network(images[share]).argmax(dim=1) == labels[share]).sum()))


def save(network: nn.Module, folder: Path) -> Path:
    """Writes beside the target and renames, so that `model.pt` is always a whole file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.pt"
    unfinished = folder / "model.pt.unfinished"
    torch.save(network.state_dict(), unfinished)
    unfinished.replace(path)
    return path


if __name__ == "__main__":
    main()
