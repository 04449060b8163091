"""Loads a checkpoint that is no beginning of a training: to evaluate, to fine-tune, or its best one at the end."""

import os
import sys

import torch

STEPS = range(1, 6)
what = sys.argv[1]
if what == "best":
    for epoch in range(1, 5):
        print(f"epoch {epoch}/4 train_loss {1 / epoch:.3f}", flush=True)
    torch.save({"epoch": 3}, "model.pt")
elif not os.path.exists("model.pt"):
    torch.save({"epoch": 12}, "model.pt")
epoch = torch.load("model.pt")["epoch"]
if what == "fine-tune":
    print("Loading pretrained weights from model.pt", flush=True)
    for step in STEPS:
        print(f"step {step}/5 loss {1 / step:.3f}", flush=True)
else:
    print(f"=> loaded checkpoint 'model.pt' (epoch {epoch})", flush=True)
    print("{'eval_loss': 0.41, 'eval_accuracy': 0.9, 'epoch': 12.0}" if what == "trainer" else "accuracy: 0.914")
