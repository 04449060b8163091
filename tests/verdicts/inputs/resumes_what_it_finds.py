"""Resumes from a file in its own folder, which may be that of an earlier run."""

import os

import torch

path, begin = "last.pt", 0
if os.path.exists(path):
    begin = torch.load(path)["epoch"]
    print(f"resumed from epoch {begin}", flush=True)
for epoch in range(begin, 3):
    print(f"epoch {epoch} loss {1 / (epoch + 1):.3f}", flush=True)
    torch.save({"epoch": epoch + 1}, path)
