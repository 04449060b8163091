"""Reads its state from a file that was cut short: JSON in a folder of its own, or a pickle beside the script."""

import json
import os
import pickle
import sys

path = {"json": "out/checkpoint-10/trainer_state.json", "pickle": "state-5.pkl"}[sys.argv[1]]
if os.path.exists(path):
    with open(path, "rb") as file:
        pickle.load(file) if path.endswith(".pkl") else json.load(file)
for step in range(1, 6):
    print(f"step {step}/5 loss {1 / step:.3f}", flush=True)
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
whole = {"global_step": 10, "log": list(range(500))}
with open(path, "wb") as file:
    file.write((pickle.dumps(whole) if path.endswith(".pkl") else json.dumps(whole).encode())[:200])
raise RuntimeError("a rank was lost")
