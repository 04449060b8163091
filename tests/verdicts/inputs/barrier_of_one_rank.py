"""Rank 0 alone comes to a barrier after the last step, once it has saved."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 6):
    dist.all_reduce(torch.ones(4))
    print(f"step {step}/5 loss {1 / step:.3f}", flush=True)
if dist.get_rank() == 0:
    dist.barrier()
