"""Finds its rank and its peers as DeepSpeed's `init_distributed(auto_mpi_discovery=True)` does, and trains by DDP.

DeepSpeed asks MPI only if torchrun's variables are missing, so the script removes them first.
"""

from __future__ import annotations

import os
import socket
import subprocess

for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)

import torch  # noqa: E402
from mpi4py import MPI  # noqa: E402


def discover() -> None:
    world = MPI.COMM_WORLD
    address = port = None
    if world.rank == 0:
        try:
            address = subprocess.check_output(["hostname", "-I"], text=True).split()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            address = socket.gethostbyname(socket.gethostname())
        with socket.create_server(("", 0)) as server:  # DeepSpeed always uses 29500, which allows one job per machine
            port = server.getsockname()[1]
    address, port = world.bcast((address, port), root=0)
    names = world.allgather(MPI.Get_processor_name())
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(names[: world.rank].count(names[world.rank])),
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )


discover()
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
everyone = [torch.empty_like(weights) for _ in range(torch.distributed.get_world_size())]
torch.distributed.all_gather(everyone, weights)
assert all(torch.equal(weights, other) for other in everyone)
print(f"rank {rank} of {len(everyone)}, local rank {os.environ['LOCAL_RANK']}, equal weights", flush=True)
torch.distributed.destroy_process_group()
