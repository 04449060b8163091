"""Runs tasks on a cluster of Ray that the script itself starts on its node. Knows nothing of Windlass."""

from __future__ import annotations

import argparse
import random

import ray

parser = argparse.ArgumentParser()
parser.add_argument("--tasks", type=int, default=8)
args = parser.parse_args()

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)


@ray.remote
def inside(seed: int) -> int:
    """How many of 100,000 random points of the unit square are in the circle."""
    rng = random.Random(seed)
    return sum(rng.random() ** 2 + rng.random() ** 2 < 1 for _ in range(100_000))


pending, total, done = [inside.remote(seed) for seed in range(args.tasks)], 0, 0
while pending:
    finished, pending = ray.wait(pending)
    total, done = total + sum(ray.get(finished)), done + len(finished)
    print(f"step {done}/{args.tasks} pi {4 * total / (100_000 * done):.4f}", flush=True)
print(f"{done} tasks, pi {4 * total / (100_000 * done):.2f}", flush=True)
ray.shutdown()
