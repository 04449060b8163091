"""Runs five all-reduces with gloo; with `raise` or `kill`, rank 1 fails at step 3 while the others wait for it."""

import os
import signal
import sys

import torch
import torch.distributed as dist

start, fate = float(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
for step in range(1, 6):
    if dist.get_rank() == 1 and step == 3 and fate == "raise":
        raise ValueError(f"loss is nan at step {step}")
    if dist.get_rank() == 1 and step == 3 and fate == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(total)
    print(f"step {step} sum {total.item():g}", flush=True)
    dist.barrier()  # all ranks have printed the step: the next failure ends the others at once
dist.destroy_process_group()
