"""A script that uses Lightning's Trainer and saves regularly, without Windlass."""
# mypy: ignore-errors

import argparse
import os

import lightning as L  # noqa: N812
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        if self.global_rank == 0:
            print(f"step {self.global_step + 1}", flush=True)
        inputs, targets = batch
        return nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


parser = argparse.ArgumentParser()
parser.add_argument("--folder", required=True)
parser.add_argument("--ckpt_path")
parser.add_argument("--epochs", type=int, default=6)
args = parser.parse_args()
torch.set_num_threads(1)
L.seed_everything(0)
inputs = torch.randn(1600, 4)
data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    max_epochs=args.epochs,
    callbacks=[ModelCheckpoint(args.folder, every_n_train_steps=20, save_top_k=-1)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Line(), data, ckpt_path=args.ckpt_path)
print(f"trained {trainer.global_step} steps", flush=True)
