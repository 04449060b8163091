"""Picks its newest checkpoint by itself, as trainers do, and loads it; attempt 1 is killed and leaves it cut short."""

import os
import re
import signal
import sys

import numpy
import torch
import torch.distributed.checkpoint as dcp

kind, cut = sys.argv[1:3]  # how it saves, and which file of checkpoint-15 is cut short
folder = os.environ["WINDLASS_CHECKPOINT_DIR"]
model = torch.nn.Linear(32, 32)


def save(into):
    if kind == "safetensors":
        from safetensors.torch import save_file

        save_file(model.state_dict(), os.path.join(into, "model.safetensors"))
    elif kind == "torch":
        torch.save(model.state_dict(), os.path.join(into, "model.pt"))
    elif kind == "npz":
        weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        numpy.savez(os.path.join(into, "model.npz"), **weights)
    else:
        dcp.save(model.state_dict(), checkpoint_id=into, no_dist=True)


def load(path):
    if kind == "safetensors":
        from safetensors.torch import load_file

        model.load_state_dict(load_file(os.path.join(path, "model.safetensors")))
    elif kind == "torch":
        model.load_state_dict(torch.load(os.path.join(path, "model.pt")))
    elif kind == "npz":
        weights = numpy.load(os.path.join(path, "model.npz"))
        model.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights})
    else:
        state = model.state_dict()
        dcp.load(state, checkpoint_id=path, no_dist=True)
        model.load_state_dict(state)


begin = 0
saved = [int(name.split("-")[1]) for name in os.listdir(folder) if re.fullmatch(r"checkpoint-\d+", name)]
if saved:
    begin = max(saved)
    print(f"resuming from checkpoint-{begin}", flush=True)
    load(os.path.join(folder, f"checkpoint-{begin}"))
for step in range(begin + 1, 31):
    print(f"step {step}/30 loss {1 / step:.3f}", flush=True)
    if step % 5 == 0:
        into = os.path.join(folder, f"checkpoint-{step}")
        os.makedirs(into, exist_ok=True)
        save(into)
    if step == 17 and os.environ["WINDLASS_ATTEMPT"] == "1":
        path = os.path.join(folder, "checkpoint-15", cut)
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
