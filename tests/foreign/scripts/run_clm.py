"""The shape of Transformers' run_clm.py: HfArgumentParser, a Trainer, and the arguments that its README gives."""
# mypy: ignore-errors

from dataclasses import dataclass, field

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    config_overrides: str = field(default="n_embd=16,n_head=2,n_layer=1,n_positions=16,vocab_size=128")


@dataclass
class DataTrainingArguments:
    train_file: str = field(default="train.txt")
    block_size: int = field(default=16)


def main() -> None:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    config = GPT2Config(bos_token_id=0, eos_token_id=0)
    config.update_from_string(model_args.config_overrides)
    with open(data_args.train_file) as file:
        ids = torch.tensor([ord(letter) % 128 for letter in file.read()])
    blocks = ids[: len(ids) // data_args.block_size * data_args.block_size].view(-1, data_args.block_size)
    dataset = [{"input_ids": block, "labels": block} for block in blocks]
    trainer = Trainer(model=GPT2LMHeadModel(config), args=training_args, train_dataset=dataset)
    result = trainer.train()
    print(f"world size {training_args.world_size}, steps {result.global_step}")


if __name__ == "__main__":
    main()
