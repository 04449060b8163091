"""Trains boosted trees with LightGBM on the rows of all ranks, which reach each other at the hosts of the run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import lightgbm
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=30)
args = parser.parse_args()

rank, local_size = int(os.environ.get("WINDLASS_RANK", "0")), int(os.environ.get("WINDLASS_LOCAL_WORLD_SIZE", "1"))
hosts = os.environ.get("WINDLASS_HOSTS", "127.0.0.1").split(",")
# One port for each rank, from that of the run on: the ranks of a node, and nodes that share a machine, need their own.
port = int(os.environ.get("WINDLASS_MASTER_PORT", "12400"))
machines = [
    f"{host}:{port + node * local_size + local}" for node, host in enumerate(hosts) for local in range(local_size)
]

rng = np.random.default_rng(rank)  # each rank makes its own share of the data
points = rng.normal(size=(2000, 4))
labels = (points[:, 0] ** 2 + points[:, 1] ** 2 > 1.4).astype(int)
settings = {
    "objective": "binary",
    "metric": "binary_error",
    "num_leaves": 15,
    "num_threads": 1,
    "verbosity": -1,
    "tree_learner": "data",
    "num_machines": len(machines),
    "machines": ",".join(machines),
    "local_listen_port": port + rank,
    "pre_partition": True,
}
data = lightgbm.Dataset(points, labels)
model = lightgbm.train(settings, data, args.rounds)
error = float(np.mean((model.predict(points) > 0.5) != labels))
if rank == 0:
    model.save_model(Path(os.environ.get("WINDLASS_OUTPUT_DIR", "."), "model.txt"))
print(f"rank {rank} of {len(machines)}: {model.num_trees()} trees, error {error:.4f}", flush=True)
