"""Saves one shard of its optimizer a rank, which another world size cannot load; attempt 1 loses a node."""

import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
path = os.path.join(os.environ["WINDLASS_CHECKPOINT_DIR"], "shards.txt")
begin = 0
if os.path.exists(path):
    begin, shards = map(int, open(path).read().split())
    if shards != world:
        raise RuntimeError(f"optimizer states were saved by {shards} data-parallel ranks, and {world} load them")
for step in range(begin + 1, 41):
    time.sleep(0.05)
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        print(f"step {step}/40 loss {1 / step:.3f}", flush=True)
        if step % 5 == 0:
            open(path, "w").write(f"{step} {world}")
    if step == 17 and os.environ["WINDLASS_ATTEMPT"] == "1" and rank == world - 1:
        os.kill(os.getppid(), signal.SIGKILL)
dist.destroy_process_group()
