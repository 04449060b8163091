"""Trains boosted trees with XGBoost on the rows of all ranks; rank 0 runs the tracker by which they find each other."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=30)
args = parser.parse_args()

rank, size = int(os.environ.get("WINDLASS_RANK", "0")), int(os.environ.get("WINDLASS_WORLD_SIZE", "1"))
host, port = os.environ.get("WINDLASS_MASTER_ADDR", "127.0.0.1"), int(os.environ.get("WINDLASS_MASTER_PORT", "0"))
tracker = RabitTracker(host_ip=host, n_workers=size, port=port) if rank == 0 else None
if tracker is not None:
    tracker.start()
    port = int(tracker.worker_args()["dmlc_tracker_port"])

rng = np.random.default_rng(rank)  # each rank makes its own share of the data
points = rng.normal(size=(2000, 4))
labels = (points[:, 0] ** 2 + points[:, 1] ** 2 > 1.4).astype(int)
with collective.CommunicatorContext(
    dmlc_tracker_uri=host, dmlc_tracker_port=port, dmlc_task_id=str(rank), dmlc_retry=60
):
    data = xgboost.DMatrix(points, labels)
    settings = {"objective": "binary:logistic", "eval_metric": "error", "max_depth": 4, "nthread": 1}
    model = xgboost.train(settings, data, args.rounds, evals=[(data, "train")], verbose_eval=10)
    error = model.eval(data).rpartition(":")[2]  # over the rows of all ranks, so each of them calls it
    if collective.get_rank() == 0:
        model.save_model(Path(os.environ.get("WINDLASS_OUTPUT_DIR", "."), "model.json"))
        print(f"{collective.get_world_size()} workers, {args.rounds} rounds, error {error}", flush=True)
