"""Picks its newest checkpoint by itself, as trainers do, and loads it; attempt 1 is killed and leaves it cut short."""

import json
import os
import re
import signal

import torch
from safetensors.torch import load_file, save_file

folder = os.environ["WINDLASS_OUTPUT_DIR"]
model = torch.nn.Linear(32, 32)
saved = [name for name in os.listdir(folder) if re.fullmatch(r"checkpoint-\d+", name)]
begin = 0
if saved:
    newest = os.path.join(folder, max(saved, key=lambda name: int(name.split("-")[1])))
    print("resuming from", newest, flush=True)
    model.load_state_dict(load_file(os.path.join(newest, "model.safetensors")))
    begin = json.load(open(os.path.join(newest, "trainer_state.json")))["global_step"]
for step in range(begin + 1, 31):
    print({"loss": round(1 / step, 3), "step": step}, flush=True)
    if step % 5 == 0:
        into = os.path.join(folder, f"checkpoint-{step}")
        os.makedirs(into, exist_ok=True)
        save_file(model.state_dict(), os.path.join(into, "model.safetensors"))
        json.dump({"global_step": step}, open(os.path.join(into, "trainer_state.json"), "w"))
    if step == 17 and os.environ["WINDLASS_ATTEMPT"] == "1":
        path = os.path.join(folder, "checkpoint-15", "model.safetensors")
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
