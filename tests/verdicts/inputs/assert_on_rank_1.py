"""Rank 1 fails by an assertion before the first step, and rank 0 waits for it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
shards = 3
assert shards > 2 * dist.get_rank() + 1, f"{shards} shards are too few"
dist.all_reduce(torch.ones(1))
