"""The shape of PyTorch's minGPT-ddp: torchrun's variables, a process group, DDP, and a snapshot to resume from."""
# mypy: ignore-errors

import argparse
import os
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model: torch.nn.Module, data: TensorDataset, snapshot: str) -> None:
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.snapshot = snapshot
        self.epochs_run = 0
        self.loader = DataLoader(data, batch_size=16, shuffle=False, sampler=DistributedSampler(data))
        if Path(snapshot).exists():
            state = torch.load(snapshot, weights_only=True)
            model.load_state_dict(state["model"])
            self.epochs_run = state["finished_epoch"]
            print(f"Resuming training from snapshot at Epoch {self.epochs_run}")
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def train(self, max_epochs: int) -> None:
        for epoch in range(self.epochs_run + 1, max_epochs + 1):
            self.loader.sampler.set_epoch(epoch)
            for step, (inputs, targets) in enumerate(self.loader):
                loss = torch.nn.functional.cross_entropy(self.model(inputs), targets)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.optimizer.step()
                print(
                    f"[RANK{self.global_rank}] Epoch {epoch} | Iter {step} | Train Loss {loss.item():.5f}", flush=True
                )
            if self.local_rank == 0:
                torch.save({"model": self.model.module.state_dict(), "finished_epoch": epoch}, self.snapshot)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_epochs", type=int, default=2)
    args = parser.parse_args()
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
    Trainer(torch.nn.Linear(8, 4), data, "gpt_snapshot.pt").train(args.max_epochs)
    destroy_process_group()


if __name__ == "__main__":
    main()
