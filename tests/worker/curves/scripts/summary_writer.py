"""Writes scalars with torch's SummaryWriter, and is killed in the first attempt; the second goes on."""
# mypy: ignore-errors

import os
import signal

import torch
from torch.utils.tensorboard import SummaryWriter

is_first = os.environ["WINDLASS_ATTEMPT"] == "1"
writer = SummaryWriter()
for step in range(30) if is_first else range(20, 50):
    writer.add_scalar("loss", 1 / (step + 1), step)
    writer.add_scalars("accuracy", {"top1": step / 50, "top5": step / 25}, step)
writer.add_histogram("weights", torch.randn(1000), 1)
writer.add_scalar("as_tensor", 3.0, 1, new_style=True)
writer.flush()
if is_first:
    os.kill(os.getpid(), signal.SIGKILL)
