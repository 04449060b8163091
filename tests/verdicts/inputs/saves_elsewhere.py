"""Saves its state in a folder of its own, and knows nothing of Windlass."""

import os

os.makedirs("out/ck-5", exist_ok=True)
for step in range(1, 6):
    print(f"step {step}/5 loss {1 / step:.3f}", flush=True)
with open("out/ck-5/model.pt", "wb") as file:
    file.write(b"weights")
raise SystemExit(3 if os.environ.get("FAILS") else 0)
