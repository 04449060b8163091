"""Trains with DDP and saves with plain torch.save; `--resume FILE` continues from such a file.

Does not use Windlass. `--hold STEP` waits after that step, once, to be killed.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--resume", type=Path)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--hold", type=int, default=0)
args = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
done = 0
if args.resume is not None:
    state = torch.load(args.resume, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]
for step in range(done + 1, args.steps + 1):
    batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * 100 + dist.get_rank()))
    optimizer.zero_grad()
    (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        holds = step == args.hold and not (args.folder / "held").exists()
        if holds:  # set before the script can be seen and killed, or it would wait again
            (args.folder / "held").touch()
        print(f"step {step}", flush=True)
        if step % 5 == 0:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(saved, args.folder / f"model-{step}.pt")
        if holds:
            time.sleep(600)
weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
print(f"weights {hashlib.sha256(weights).hexdigest()}", flush=True)
dist.destroy_process_group()
