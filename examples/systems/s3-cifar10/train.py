"""Trains a small network on CIFAR-10 by DDP, from the pickles that torchvision reads.

The model is saved with this script, as the system that the example follows packs its artifact. `torchrun train.py` and
`python train.py` run the same file.
"""

from __future__ import annotations

import argparse
import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it; imported only after init_process_group, it holds the group past its end
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from windlass.train import report
from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

FOLDER = "cifar-10-batches-py"
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
SEED = 1


class Batches(pickle.Unpickler):
    """Reads batches, and nothing else: a pickle may name any function, which is then called."""

    allowed = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong into a batch of CIFAR-10")
        return super().find_class(module, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10, help="times that each image is seen (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images of a step, of all ranks (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate (default: %(default)s)")
    parser.add_argument("--backend", default="gloo", help="gloo or nccl (default: %(default)s)")
    parser.add_argument("--data", default=os.environ.get("WINDLASS_DATA_CIFAR10", "data/cifar10"), help="the set")
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group(args.backend)
    else:
        dist.init_process_group(args.backend, store=dist.HashStore(), rank=0, world_size=1)
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if args.backend == "nccl" else torch.device("cpu")
    )
    torch.manual_seed(SEED)
    network = train(args, device)
    if dist.get_rank() == 0:
        images, labels = load(Path(args.data), ("test_batch",)).tensors
        with torch.no_grad():
            correct = int((network(images.to(device)).argmax(dim=1).cpu() == labels).sum())
        print(f"test accuracy {100 * correct / len(labels):.1f} % (world size {dist.get_world_size()})", flush=True)
    dist.destroy_process_group()


def load(folder: Path, names: tuple[str, ...]) -> TensorDataset:
    """Images of 3 × 32 × 32 values from -1 to 1, and their classes, of some batches."""
    images, labels = [], []
    for name in names:
        found = Batches(io.BytesIO((folder / FOLDER / name).read_bytes()), encoding="bytes").load()
        images.append(torch.tensor(found[b"data"], dtype=torch.float32).view(-1, 3, 32, 32) / 127.5 - 1)
        labels.append(torch.tensor(found[b"labels"]))
    return TensorDataset(torch.cat(images), torch.cat(labels))


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def train(args: argparse.Namespace, device: torch.device) -> nn.Module:
    """Returns the bare network: the DDP wrapper must be gone before the process group is destroyed."""
    train_set = load(Path(args.data), TRAINING)
    network = make_network().to(device)
    ddp = DistributedDataParallel(network)
    sampler = BatchSampler(len(train_set), global_batch_size=args.batch, seed=SEED)
    loader = DataLoader(train_set, batch_sampler=sampler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=args.lr, momentum=0.5)
    saved = Checkpoint(model=ddp, optimizer=optimizer, sampler=sampler)
    for epoch in saved.epochs(args.epochs):
        for images, labels in saved.batches(loader):
            loss = F.cross_entropy(ddp(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report(epoch=epoch, loss=loss, samples=len(images))
    output = Path(os.environ.get("WINDLASS_OUTPUT_DIR", "outputs"))
    saved.export(output / "model.safetensors")
    if dist.get_rank() == 0:
        (output / "code").mkdir(exist_ok=True)
        shutil.copy(__file__, output / "code" / "inference.py")
    return network


if __name__ == "__main__":
    main()
