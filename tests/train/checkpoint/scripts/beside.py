"""Two ranks with a large state; rank 1 writes to it, unseen by torch, until a copy is spoiled; then both restore."""

from __future__ import annotations

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from windlass.train.checkpoint import Checkpoint


def build() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048))
    return model, torch.optim.Adam(model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 2048)).square().sum().backward()
    optimizer.step()


def write_until(end: threading.Event, model: nn.Module) -> None:
    """The value that is there already: the ranks stay the same."""
    arrays = [parameter.detach().numpy() for parameter in model.parameters() if parameter.dim() == 2]
    while not end.is_set():
        for array in arrays:
            array[-2, -2] = array[-2, -2]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=sys.argv[1], every=10**6, keep=1000)
    train(model, optimizer)
    saved.step()
    assert saved.save()
    saved._await_writer()
    end = threading.Event()
    writer = threading.Thread(target=write_until, args=(end, model))
    if rank == 1:
        writer.start()
    over = torch.zeros(1)
    give_up = time.monotonic() + 200
    while not over.item() and time.monotonic() < give_up:
        saved.steps += 1
        saved.save()
        saved._await_writer()
        over.fill_(float(not saved._copies_beside))
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
    end.set()
    if rank == 1:
        writer.join()
        print(f"spoiled at step {saved.steps} ", flush=True)
    for _ in range(2):
        train(model, optimizer)
        saved.step()
    saved._await_writer()
    assert not saved._copies_beside
    assert saved._saved_at == (saved.steps, 0)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer)
    saved.close()
    dist.barrier()
    again, its_optimizer = build()
    other = Checkpoint(model=again, optimizer=its_optimizer, folder=sys.argv[1], every=10**6, keep=1000)
    assert other.restore() == saved.steps
    if all(torch.equal(one, two) for one, two in zip(expected, again.parameters(), strict=True)):
        print(f"restored bit for bit on rank {rank}", flush=True)
    other.close()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
