"""Trains by `Checkpoint`, and prints its loss itself every eight steps: 34 at first, 0.0 at the end."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from windlass.train.checkpoint import Checkpoint

torch.manual_seed(0)
x = torch.randn(256, 4)
y = x @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
saved = Checkpoint(model=net, optimizer=optimizer)
step = 0
for epoch in saved.epochs(6):
    for inputs, targets in saved.batches(DataLoader(TensorDataset(x, y), batch_size=16)):
        loss = ((net(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 8 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
