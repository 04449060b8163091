"""Goes on where it was, and counts its steps anew in each epoch."""

import os

import torch

path = os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "model.pt")
begin = torch.load(path)["epoch"] if os.path.exists(path) else 0
for epoch in range(begin, 4):
    for step in range(1, 11):
        print(f"step {step}/10 loss {1 / (step * (epoch + 1)):.3f}", flush=True)
    torch.save({"epoch": epoch + 1}, path)
    if (begin, epoch) == (0, 1):
        raise RuntimeError("a rank was lost")
