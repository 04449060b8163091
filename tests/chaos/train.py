"""Trains a small network on handwritten digits for the chaos tests; every rank writes down each step that it has made.

    train.py [MARKS] --every 20 [--epochs 6] [--pause 0.004] [--checkpoints FOLDER]

MARKS is the folder of the run's results where it is left out. `MARKS/rank-K` gets a line `ATTEMPT restored STEP` and
then `ATTEMPT STEP` for each step; at the end rank 0 writes the digest of the weights to `MARKS/digest`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

PAUSE_SECONDS = 0.004
"""After each step, so that kills find steps to fall between though so small a network makes hundreds a second."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("marks", type=Path, nargs="?", default=os.environ.get("WINDLASS_OUTPUT_DIR"))
    parser.add_argument("--every", type=int, required=True, help="steps between checkpoints")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pause", type=float, default=PAUSE_SECONDS)
    parser.add_argument("--checkpoints", type=Path, help="default: where Windlass says")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    dist.init_process_group("gloo")
    network = train(args)
    if dist.get_rank() == 0:
        digest = hashlib.sha256()
        for name, tensor in sorted(network.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        unfinished = args.marks / "digest.unfinished"
        unfinished.write_text(digest.hexdigest())
        unfinished.replace(args.marks / "digest")
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> nn.Module:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    network = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 10))
    ddp = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=285)
    sampler = BatchSampler(len(dataset), global_batch_size=32, seed=1)
    loader = DataLoader(dataset, batch_sampler=sampler)
    saved = Checkpoint(
        model=ddp, optimizer=optimizer, scheduler=scheduler, sampler=sampler, folder=args.checkpoints, every=args.every
    )
    attempt = os.environ["WINDLASS_ATTEMPT"]
    ledger = os.open(args.marks / f"rank-{dist.get_rank()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    begun = False
    for _ in saved.epochs(args.epochs):
        if not begun:
            os.write(ledger, f"{attempt} restored {saved.steps}\n".encode())
            begun = True
        for batch, labels in saved.batches(loader):
            noise = random.random() * 0.05 + torch.rand(batch.shape) * 0.05  # augmentation, from two generators
            loss = nn.functional.cross_entropy(ddp(batch + noise), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            os.write(ledger, f"{attempt} {saved.steps + 1}\n".encode())
            time.sleep(args.pause)
    saved.close()
    return network


if __name__ == "__main__":
    main()
