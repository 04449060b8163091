"""Twenty steps of the Trainer, which is killed after a save in the first attempt."""
# mypy: ignore-errors

import os
import signal
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.layer(x).squeeze(-1), labels)}


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == 15 and os.environ["WINDLASS_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)


args = TrainingArguments(
    "out",
    max_steps=20,
    per_device_train_batch_size=4,
    logging_steps=1,
    save_steps=10,
    save_total_limit=1,
    report_to="none",
    use_cpu=True,
)
data = [{"x": torch.randn(2), "labels": torch.tensor(1.0)} for _ in range(80)]
Trainer(Model(), args, train_dataset=data, callbacks=[Kill()]).train(
    resume_from_checkpoint=Path("out", "checkpoint-10").exists()
)
