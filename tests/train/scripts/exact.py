"""Trains with every source of randomness, is killed at given steps, and prints the digest of its weights.

    exact.py FOLDER [--loader sampler|stateful] [--every 7] [--kill STEP:RANK ...] [--patient] [--device cuda]

Each kill happens once: a file in FOLDER records it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from windlass.train.checkpoint import Checkpoint, files
from windlass.train.sampler import BatchSampler

EPOCHS = 3
NUM_SAMPLES = 118


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Random images with labels, the same in every process."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randn(NUM_SAMPLES, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 10, (NUM_SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


def loader_of(kind: str) -> tuple[Any, dict[str, Any]]:
    """Returns the loader, and the objects of it that are part of the checkpoint."""
    if kind == "sampler":
        sampler = BatchSampler(NUM_SAMPLES, 4, seed=3)
        return DataLoader(Images(), batch_sampler=sampler, num_workers=1), {"sampler": sampler}
    order: DistributedSampler[Any] = DistributedSampler(Images(), seed=3)
    loader: Any = StatefulDataLoader(Images(), batch_size=4, sampler=order, num_workers=2)
    return loader, {"loader": loader, "order": order}


class OfThisRank(dict[str, float]):
    """State that differs between ranks; for a plain dict, rank 0's state is used by all."""

    state_is_per_rank = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loader", choices=["sampler", "stateful"], default="sampler")
    parser.add_argument("--every", type=int, default=7)
    parser.add_argument("--kill", nargs="*", default=[])
    parser.add_argument("--patient", action="store_true", help="killed only once the checkpoint before is whole")
    parser.add_argument("--device", default="cpu", help="of the weights; dropout draws there too")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(args.device == "cuda")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11 + rank)
    random.seed(12 + rank)
    np.random.seed(13 + rank)
    network = train(args, rank)
    if rank == 0:
        digest = hashlib.sha256()
        for tensor in network.state_dict().values():
            digest.update(tensor.cpu().numpy().tobytes())
        (args.folder / "digest").write_text(digest.hexdigest())
    dist.destroy_process_group()


def train(args: argparse.Namespace, rank: int) -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 10)]
    network = nn.Sequential(*layers).to(args.device)
    ddp = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=9, gamma=0.7)
    loader, parts = loader_of(args.loader)
    own, common = OfThisRank(sum=0.0), {"steps": 0}
    saved = Checkpoint(
        model=ddp,
        optimizer=optimizer,
        scheduler=scheduler,
        own=own,
        common=common,
        every=args.every,
        when_busy="wait" if args.patient else "skip",
        **parts,
    )
    for _ in saved.epochs(EPOCHS):
        for images, labels in saved.batches(loader):
            own["sum"] += random.random()
            common["steps"] += 1
            scale = 1 + 0.1 * random.random() + 0.1 * float(np.random.rand())
            noise = torch.randn(images.shape) * 0.1 + own["sum"] * 1e-3 + common["steps"] * 1e-4
            logits = ddp((images * scale + noise).to(args.device))
            loss = nn.functional.cross_entropy(logits, labels.to(args.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            die_here(args, saved.steps + 1, rank)
    return network


def die_here(args: argparse.Namespace, step: int, rank: int) -> None:
    """Kills the process once in the middle of a step: after the weights have changed, before the step counts."""
    if f"{step}:{rank}" in args.kill:
        mark = args.folder / f"killed-{step}-{rank}"
        if not mark.exists():
            mark.touch()
            due = (step - 1) // args.every * args.every
            # Without --patient, any one of the due checkpoints suffices: on a busy machine the writer may be far
            # behind.
            awaited = {due} if args.patient else set(range(step))
            while due >= (1 if args.patient else 2 * args.every) and not awaited & complete_steps():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def complete_steps() -> set[int]:
    """Returns the steps of the complete checkpoints."""
    folder = os.environ.get("WINDLASS_CHECKPOINT_DIR", "checkpoints")
    return {found.step for found in files.list_checkpoints(folder) if found.complete}


if __name__ == "__main__":
    main()
