"""Adds up an array over all nodes, several times, and holds the bytes on the wire and the time against the ring model.

In a ring all-reduce each of N nodes sends every part of the array but one, twice: first to be added up, then to be
handed round. So 2(N−1)/N · K bytes leave each node for an array of K bytes, and as many arrive.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--megabytes", type=float, default=10, help="size of the array")
parser.add_argument("--times", type=int, default=5)
parser.add_argument("--rate-mbit", type=float, help="speed of each node's link")
options = parser.parse_args()
device = os.environ.get("GLOO_SOCKET_IFNAME", "lo")


def on_the_wire() -> torch.Tensor:
    """Bytes that this node has sent and received so far, as its network device counts them."""
    folder = Path("/sys/class/net") / device / "statistics"
    return torch.tensor([int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx")], dtype=torch.float64)


dist.init_process_group("gloo")
rank, nodes = dist.get_rank(), dist.get_world_size()
array = torch.empty(int(options.megabytes * 1e6) // 4)
size = array.numel() * array.element_size()
dist.all_reduce(array.fill_(1))  # the first one also connects the nodes
dist.barrier()

before, took = on_the_wire(), []
for number in range(options.times):
    array.fill_(rank + 1)
    start = time.perf_counter()
    dist.all_reduce(array)
    took.append(time.perf_counter() - start)
    assert bool((array == nodes * (nodes + 1) / 2).all()), "a wrong sum"
    if rank == 0:
        print(f"all-reduce {number + 1} of {options.times}: {took[-1]:.3f} s", flush=True)
dist.barrier()  # what a node has sent may still wait in its queue; once all are here, it has arrived
counted = (on_the_wire() - before) / options.times

everyone = [torch.zeros_like(counted) for _ in range(nodes)]
dist.all_gather(everyone, counted)
if rank == 0:
    model = 2 * (nodes - 1) / nodes * size
    for node, (sent, received) in enumerate(everyone):
        print(f"node {node}: sent {sent / 1e6:.2f} MB, received {received / 1e6:.2f} MB for each all-reduce")
    sent = float(torch.stack(everyone)[:, 0].mean())
    print(f"bytes: {sent / 1e6:.2f} MB a node, model {model / 1e6:.2f} MB, ratio {sent / model:.3f}")
    seconds = sorted(took)[len(took) // 2]
    if options.rate_mbit:
        ideal = model * 8 / (options.rate_mbit * 1e6)
        print(f"time: {seconds:.3f} s, model {ideal:.3f} s, ratio {seconds / ideal:.3f}")
    else:
        print(f"time: {seconds:.3f} s")
dist.destroy_process_group()
