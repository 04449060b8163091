"""Trains a small network on scikit-learn's handwritten digits, and can be killed at any moment.

The three lines that make it resumable are numbered. `torchrun train.py`, `python train.py` and `windlass run job.yaml`
all run this one file, and each goes on from the newest checkpoint that it finds.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it; imported only after init_process_group, it holds the group past its end
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from windlass.train import report
from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

TEST_IMAGES = 360
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="times that each image is seen (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so small a network only loses by more
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(SEED)
    train_set, test_set = load_and_split()
    network = train(args, train_set)
    if dist.get_rank() == 0:
        correct = count_correct(network, test_set)
        print(f"test accuracy {100 * correct / len(test_set):.1f} % (world size {dist.get_world_size()})", flush=True)
    dist.destroy_process_group()


def load_and_split() -> tuple[TensorDataset, TensorDataset]:
    """1797 images of 8 × 8 pixels, shuffled the same way on every rank; the last 360 are for the test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    images, labels = images[order], labels[order]
    return (
        TensorDataset(images[:-TEST_IMAGES], labels[:-TEST_IMAGES]),
        TensorDataset(images[-TEST_IMAGES:], labels[-TEST_IMAGES:]),
    )


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(args: argparse.Namespace, train_set: TensorDataset) -> nn.Module:
    """Returns the bare network: the DDP wrapper must be gone before the process group is destroyed."""
    network = make_network()
    ddp = DistributedDataParallel(network)
    # The batch is that of all ranks together, so every number of ranks takes the same steps.
    sampler = BatchSampler(len(train_set), global_batch_size=32, seed=SEED)
    loader = DataLoader(train_set, batch_sampler=sampler)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    saved = Checkpoint(model=ddp, optimizer=optimizer, sampler=sampler)  # 1: what is to be there after a kill
    for epoch in saved.epochs(args.epochs):  # 2: the epochs that remain
        for images, labels in saved.batches(loader):  # 3: the batches that remain
            loss = F.cross_entropy(ddp(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report(epoch=epoch, loss=loss, samples=len(images))
    saved.export(Path(os.environ.get("WINDLASS_OUTPUT_DIR", "outputs")) / "model.safetensors")
    return network


@torch.no_grad()
def count_correct(network: nn.Module, test_set: TensorDataset) -> int:
    network.eval()
    images, labels = test_set.tensors
    return int((network(images).argmax(dim=1) == labels).sum())


if __name__ == "__main__":
    main()
