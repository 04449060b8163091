"""One rank holds a file lock while it waits in a barrier, which the other reaches only with the lock."""

import fcntl

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
with open("data.lock", "w") as file:
    if dist.get_rank():
        dist.recv(torch.zeros(1), 0)  # after rank 0 has it
    # the lock of the data set
    fcntl.flock(file, fcntl.LOCK_EX)
    if not dist.get_rank():
        dist.send(torch.zeros(1), 1)
    print("loaded", flush=True)
    dist.barrier()
