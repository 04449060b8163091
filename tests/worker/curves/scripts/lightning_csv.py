"""Two epochs of Lightning with its CSVLogger, which writes its file anew when `val_loss` is first logged."""
# mypy: ignore-errors

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def loss(self, name: str, batch: torch.Tensor) -> torch.Tensor:
        loss = self.layer(batch).square().mean()
        self.log(name, loss)
        return loss

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.loss("train_loss", batch)

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.loss("val_loss", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def data() -> torch.utils.data.DataLoader[torch.Tensor]:
    return torch.utils.data.DataLoader(torch.randn(40, 2), batch_size=4)


lightning.Trainer(
    max_epochs=2,
    logger=CSVLogger(".", flush_logs_every_n_steps=1),
    log_every_n_steps=1,
    enable_checkpointing=False,
    accelerator="cpu",
    num_sanity_val_steps=0,
).fit(Model(), data(), data())
