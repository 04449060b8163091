"""Makes a process group of one rank, as where world_size is written into the script."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
loss = torch.ones(1)
dist.all_reduce(loss)
print(f"step 1/1 loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
