"""Two ranks meet and compute with two threads each."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(2)
weights = torch.ones(256, 256, requires_grad=True)
(weights @ weights).sum().backward()  # type: ignore[no-untyped-call]
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(total.item())
dist.destroy_process_group()
