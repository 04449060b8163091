"""Trains on the stream `pictures`, records the samples of each step, and is killed at given steps.

    seen.py FOLDER [--kill STEP:RANK:WORLD_SIZE ...]

Each kill happens once, after a checkpoint is complete; a file in FOLDER records it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from windlass.train import stream
from windlass.train.checkpoint import Checkpoint, files
from windlass.train.sampler import BatchSampler

EPOCHS = 2
EVERY = 3


def decoded(sample: dict[str, Any]) -> tuple[str, float]:
    """Returns the key and the label of a sample. Raises AssertionError if its bytes are wrong."""
    number = int(sample["cls"])
    assert sample["jpg"] == random.Random(number).randbytes(1000), sample["__key__"]
    return sample["__key__"], float(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", nargs="*", default=[])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    network = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
    pictures = stream("pictures", transform=decoded)
    sampler = BatchSampler(len(pictures), global_batch_size=12, seed=3)
    loader: Any = DataLoader(pictures, batch_sampler=sampler, num_workers=1)
    saved = Checkpoint(
        model=network, optimizer=optimizer, sampler=sampler, data=pictures, every=EVERY, when_busy="wait"
    )
    attempt = int(os.environ["WINDLASS_ATTEMPT"])
    with (args.folder / f"{attempt}-{rank}.jsonl").open("w", buffering=1) as seen:
        for epoch in saved.epochs(EPOCHS):
            for keys, labels in saved.batches(loader):
                optimizer.zero_grad()
                network(labels.float().unsqueeze(1)).square().mean().backward()
                optimizer.step()
                step = saved.steps + 1
                line = {"epoch": epoch, "step": step, "attempt": attempt, "world_size": world_size, "keys": list(keys)}
                seen.write(json.dumps(line) + "\n")
                die_here(args, f"{step}:{rank}:{world_size}", (step - 1) // EVERY * EVERY)
    dist.destroy_process_group()


def die_here(args: argparse.Namespace, place: str, due: int) -> None:
    mark = args.folder / f"killed-{place}"
    if place in args.kill and not mark.exists():
        mark.touch()
        folder = os.environ["WINDLASS_CHECKPOINT_DIR"]
        while not any(one.complete and one.step == due for one in files.list_checkpoints(folder)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
