"""Trains a small network on scikit-learn's handwritten digits with Lightning's Trainer.

`python train.py`, `torchrun train.py` and `windlass run job.yaml` all run this one file.
"""

import argparse
import os
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TEST_IMAGES = 360


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)  # so small a network only loses by more
    L.seed_everything(0)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = L.Trainer(
        # The launcher says how many ranks there are; Lightning finds each one's place by itself.
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        accelerator="auto",
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=args.epochs,
        callbacks=[
            TQDMProgressBar(),  # the other one, made by rich, shows nothing in a log before the end
            ModelCheckpoint(args.output_dir, filename="{epoch}-{step}", save_top_k=2, monitor="step", mode="max"),
        ],
        default_root_dir=args.output_dir,
        logger=False,
        enable_model_summary=False,
    )
    train_set, test_set = load_and_split()
    digits = Digits(args.learning_rate)
    batch_size = max(1, args.batch_size // trainer.world_size)  # every number of ranks takes the same steps
    trainer.fit(digits, DataLoader(train_set, batch_size=batch_size, shuffle=True), ckpt_path=args.ckpt_path)
    figures = trainer.test(digits, DataLoader(test_set, batch_size=180), verbose=False)[0]
    trainer.save_checkpoint(args.output_dir / "model.ckpt")
    if trainer.is_global_zero:
        of_all = f"{TEST_IMAGES} images, world size {trainer.world_size}"
        print(f"test accuracy {100 * figures['accuracy']:.1f} % ({of_all})")
        print(f"model saved to {args.output_dir}/model.ckpt", flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="times that each image is seen (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a step, all ranks (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.005, help="the highest (default: %(default)s)")
    parser.add_argument("--output-dir", type=Path, default=os.environ.get("WINDLASS_OUTPUT_DIR", "outputs"))
    parser.add_argument("--ckpt-path", help="a checkpoint to go on from")
    return parser.parse_args()


def load_and_split() -> tuple[TensorDataset, TensorDataset]:
    """Images of 8 × 8 pixels, shuffled the same way on every rank; the last 360 are for the test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return (
        TensorDataset(images[:-TEST_IMAGES], labels[:-TEST_IMAGES]),
        TensorDataset(images[-TEST_IMAGES:], labels[-TEST_IMAGES:]),
    )


class Digits(L.LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        found = self.network(images).argmax(dim=1)
        self.log("accuracy", (found == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.learning_rate, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    main()
