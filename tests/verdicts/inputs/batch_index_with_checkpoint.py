"""Prints the number of a batch in its epoch, is killed in the fifth epoch, and continues from its checkpoint."""

import os
import signal
import time

import torch

from windlass.train import Checkpoint

net = torch.nn.Linear(2, 1)
saved = Checkpoint(model=net, every=20)
count = 0
for epoch in saved.epochs(6):
    for number, _ in enumerate(saved.batches(range(16)), 1):
        count += 1
        print(f"epoch {epoch} step {number} loss {1 / (epoch + number):.3f}", flush=True)
        time.sleep(0.03)
        if count == 78 and os.environ["WINDLASS_ATTEMPT"] == "1":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
