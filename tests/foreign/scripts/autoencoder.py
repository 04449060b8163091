"""The shape of Lightning's autoencoder example: a LightningModule, a Trainer that is told nothing of ranks."""
# mypy: ignore-errors

import os

import lightning
import torch
from torch.utils.data import DataLoader


class LitAutoEncoder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        self.decoder = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 16))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        default_root_dir=os.environ.get("WINDLASS_OUTPUT_DIR"),
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(LitAutoEncoder(), DataLoader(torch.rand(64, 16), batch_size=8))
    print(f"world size {trainer.world_size}, epochs {trainer.current_epoch}")
