"""Trains a small network on scikit-learn's handwritten digits, on one process or on many.

`torchrun train.py`, `python train.py` and `windlass run job.yaml` all run this one file.
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
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

try:
    from windlass.train import report
except ImportError:  # under plain torchrun no program reads the progress

    def report(**_: object) -> None: ...


TEST_IMAGES = 360
SEED = 0


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)  # so small a network only loses by more
    device = join_the_other_ranks()
    torch.manual_seed(SEED)
    train_set, test_set = load_and_split()

    network = train(args, train_set, device)
    correct = count_correct(network, test_set, device)

    if dist.get_rank() == 0:
        path = save(network, Path(os.environ.get("WINDLASS_OUTPUT_DIR", "outputs")))
        of_all = f"{correct} of {len(test_set)} images, world size {dist.get_world_size()}"
        print(f"test accuracy {100 * correct / len(test_set):.1f} % ({of_all})")
        print(f"model saved to {path}", flush=True)
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="times that each image is seen (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a step, all ranks (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="at its highest (default: %(default)s)")
    return parser.parse_args()


def join_the_other_ranks() -> torch.device:
    """Returns this rank's device; without a launcher's variables the process is alone, and rank 0 of 1."""
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpu_for_each_rank = torch.cuda.device_count() >= local_ranks
    backend = "nccl" if gpu_for_each_rank else "gloo"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu_for_each_rank else torch.device("cpu")
    if gpu_for_each_rank:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


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
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(args: argparse.Namespace, train_set: TensorDataset, device: torch.device) -> nn.Module:
    """Returns the bare network: the DDP wrapper must be gone before the process group is destroyed."""
    network = make_network().to(device)
    ddp = DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)
    sampler: DistributedSampler[Tensor] = DistributedSampler(train_set, seed=SEED)
    # The batch is split over the ranks, so every number of ranks takes the same steps.
    loader = DataLoader(train_set, batch_size=max(1, args.batch_size // dist.get_world_size()), sampler=sampler)
    total = args.epochs * len(loader)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.learning_rate, total_steps=max(total, 1))

    step = 0
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros((), device=device)
        for images, labels in loader:
            loss = F.cross_entropy(ddp(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            loss_sum += loss.detach()
            report(step=step, total=total, epoch=epoch, loss=loss, samples=len(images))
        dist.all_reduce(loss_sum)
        if dist.get_rank() == 0:
            mean = loss_sum.item() / (len(loader) * dist.get_world_size())
            print(f"epoch {epoch}/{args.epochs}: loss {mean:.3f}", flush=True)
    return network


@torch.no_grad()
def count_correct(network: nn.Module, test_set: TensorDataset, device: torch.device) -> int:
    """Each rank looks at its share of the test images; the sum is over all ranks, and no image counts twice."""
    network.eval()
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()].to(device) for tensor in test_set.tensors)
    correct = (network(images).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)
    return int(correct)


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
