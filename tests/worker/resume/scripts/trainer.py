"""A script that uses the Trainer of transformers with the options of `TrainingArguments`, without Windlass."""
# mypy: ignore-errors

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments, set_seed

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
torch.set_num_threads(1)
set_seed(args.seed)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=16, n_positions=8, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
)
rows = torch.randint(0, 16, (4096, 8), generator=torch.Generator().manual_seed(0)).tolist()
trainer = Trainer(model=model, args=args, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
