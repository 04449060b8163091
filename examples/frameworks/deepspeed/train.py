"""Fits a line with DeepSpeed, as its launcher starts scripts: by --local_rank. Knows nothing of Windlass."""

from __future__ import annotations

import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=100)
deepspeed.add_config_arguments(parser)
args = parser.parse_args()
if args.local_rank == -1:
    parser.error("this script is started by deepspeed, which passes --local_rank")

deepspeed.init_distributed(dist_backend="gloo")
rank, world_size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)

generator = torch.Generator().manual_seed(args.local_rank)  # each rank makes its own share of the data
for number in range(1, args.steps + 1):
    features = torch.randn(32, 8, generator=generator)
    loss = torch.nn.functional.mse_loss(engine(features), features.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
    if number % 10 == 0 and rank == 0:
        print(f"step {number}/{args.steps} loss {loss.item():.6f}", flush=True)
total = sum(float(weights.sum()) for weights in model.state_dict().values())
print(f"rank {rank} of {world_size}, local rank {args.local_rank}: weights {total:.6f}", flush=True)
