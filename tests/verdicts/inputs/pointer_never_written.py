"""Saves every five steps, and resumes by a pointer to its newest save that it never writes; attempt 1 is killed."""

import os
import signal
import time

import torch

folder, begin = os.environ["WINDLASS_CHECKPOINT_DIR"], 0
pointer = os.path.join(folder, "latest.txt")
if os.path.exists(pointer):
    begin = torch.load(os.path.join(folder, open(pointer).read().strip(), "model.pt"))["step"]
for step in range(begin + 1, 31):
    time.sleep(0.05)
    print(f"step {step}/30 loss {1 / step:.3f}", flush=True)
    if step % 5 == 0:
        into = os.path.join(folder, f"step_{step}")
        os.makedirs(into, exist_ok=True)
        torch.save({"model": torch.nn.Linear(4, 4).state_dict(), "step": step}, os.path.join(into, "model.pt"))
    if step == 17 and os.environ["WINDLASS_ATTEMPT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
