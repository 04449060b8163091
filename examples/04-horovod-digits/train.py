"""Trains a small network on scikit-learn's handwritten digits with Horovod's optimizer.

`horovodrun -np 2 python train.py`, `mpirun -np 2 python train.py` and `windlass run job.yaml` all run this one file.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TEST_IMAGES = 360
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="times that each image is seen (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a step, all ranks (default: %(default)s)")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(SEED)
    images, labels = load()
    train_set = TensorDataset(images[:-TEST_IMAGES], labels[:-TEST_IMAGES])
    network = train(train_set, args.epochs, args.batch_size)
    correct = count_correct(network, images[-TEST_IMAGES:], labels[-TEST_IMAGES:])
    if hvd.rank() == 0:
        path = save(network, Path(os.environ.get("WINDLASS_OUTPUT_DIR", "outputs")))
        of_all = f"{correct} of {TEST_IMAGES} images, world size {hvd.size()}"
        print(f"test accuracy {100 * correct / TEST_IMAGES:.1f} % ({of_all})")
        print(f"model saved to {path}", flush=True)


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images of 8 × 8 pixels in an order that is the same on every rank."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(SEED))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(digits.target)[order]


def train(train_set: TensorDataset, epochs: int, batch_size: int) -> nn.Module:
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
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    sampler: DistributedSampler[object] = DistributedSampler(train_set, hvd.size(), hvd.rank(), seed=SEED)
    loader = DataLoader(train_set, batch_size=max(1, batch_size // hvd.size()), sampler=sampler)
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(())
        for images, labels in loader:
            loss = F.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        mean = hvd.allreduce(loss_sum, name="loss").item() / len(loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch}/{epochs}: loss {mean:.3f}", flush=True)
    return network


@torch.no_grad()
def count_correct(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> int:
    """Each rank looks at its share of the test images."""
    share = slice(hvd.rank(), None, hvd.size())
    correct = (network(images[share]).argmax(dim=1) == labels[share]).sum()
    return int(hvd.allreduce(correct, op=hvd.Sum, name="correct"))


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
