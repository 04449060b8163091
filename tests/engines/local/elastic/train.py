"""Trains in small steps, records the samples of each step, and ends with the epoch in which the file `enough`
appears.
"""

import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported here: a later import by DDP would keep the process group alive until the exit
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from windlass.train.checkpoint import Checkpoint
from windlass.train.sampler import BatchSampler

NUM_SAMPLES = 101  # not a multiple of any world size in the test

dist.init_process_group("gloo")
torch.manual_seed(0)
output = pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
attempt = int(os.environ["WINDLASS_ATTEMPT"])
data = TensorDataset(torch.arange(NUM_SAMPLES))
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
sampler = BatchSampler(NUM_SAMPLES, batch_size=2, seed=1)
saved = Checkpoint(model=model, optimizer=optimizer, sampler=sampler)
with open(output / f"seen-{attempt}-{dist.get_rank()}.jsonl", "w") as seen:
    for epoch in saved.epochs(1000):
        for (samples,) in saved.batches(DataLoader(data, batch_sampler=sampler)):
            optimizer.zero_grad()
            model(samples.float().unsqueeze(1)).square().mean().backward()
            optimizer.step()
            note = {"attempt": attempt, "step": saved.steps + 1, "epoch": epoch, "samples": samples.tolist()}
            print(json.dumps(note), file=seen, flush=True)
            time.sleep(0.02)
        enough = torch.tensor(int((output / "enough").exists()))
        dist.broadcast(enough, 0)
        if enough:
            break
saved.close()
