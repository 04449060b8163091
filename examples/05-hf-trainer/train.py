"""Teaches a tiny GPT-2 to write words backwards, with the Trainer of Hugging Face's transformers.

`python train.py`, `torchrun train.py` and `windlass run job.yaml` all run this one file. The model starts from random
weights and the words are made here, so nothing is downloaded.
"""

import argparse
import os
import random

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

LETTERS = "abcdefghijklmnop"
WORD = 5
CHARACTERS = {letter: place for place, letter in enumerate("<>" + LETTERS)}
NOT_LEARNT = -100  # what transformers' losses pass over
TEST_WORDS = 512


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)  # so small a model only loses by more
    set_seed(0)
    sentences = make_sentences(args.words + TEST_WORDS)
    trainer = Trainer(
        model=make_model(),
        args=TrainingArguments(
            output_dir=args.output_dir,
            use_cpu=not torch.cuda.is_available(),  # without it, ranks that find no GPU do not join each other
            num_train_epochs=args.epochs,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=256,
            learning_rate=3e-3,
            warmup_steps=50,
            lr_scheduler_type="cosine",
            logging_steps=20,
            eval_strategy="epoch",
            save_steps=100,
            save_total_limit=2,
        ),
        train_dataset=sentences[TEST_WORDS:],
        eval_dataset=sentences[:TEST_WORDS],
        compute_metrics=count_letters,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    figures = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        letters = TEST_WORDS * WORD
        of_all = f"{letters} letters, loss {figures['eval_loss']:.3f}, world size {trainer.args.world_size}"
        print(f"test accuracy {100 * figures['eval_accuracy']:.1f} % ({of_all})")
        print(f"model saved to {args.output_dir}", flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=float, default=4, help="times that each word is seen (default: %(default)s)")
    parser.add_argument("--words", type=int, default=6400, help="words to learn from (default: %(default)s)")
    parser.add_argument("--output_dir", default=os.environ.get("WINDLASS_OUTPUT_DIR", "outputs"))
    parser.add_argument("--resume_from_checkpoint", help="a folder that an earlier run has saved")
    return parser.parse_args()


def make_sentences(how_many: int) -> list[dict[str, list[int]]]:
    """`<abcde>edcba`, no word twice; only what follows `>` is to be learnt."""
    dice = random.Random(0)
    words: dict[str, None] = {}
    while len(words) < how_many:
        words["".join(dice.choices(LETTERS, k=WORD))] = None
    sentences = []
    for word in words:
        ids = [CHARACTERS[letter] for letter in f"<{word}>{word[::-1]}"]
        labels = [NOT_LEARNT] * (len(ids) - WORD) + ids[-WORD:]
        sentences.append({"input_ids": ids, "labels": labels})
    return sentences


def make_model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(CHARACTERS),
            n_positions=2 * WORD + 2,
            n_embd=64,
            n_layer=2,
            n_head=4,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


def count_letters(prediction) -> dict[str, float]:
    """The share of letters that are right; each is predicted at the place before its own."""
    found, wanted = np.argmax(prediction.predictions, axis=-1)[:, :-1], prediction.label_ids[:, 1:]
    counts = wanted != NOT_LEARNT
    return {"accuracy": float((found == wanted)[counts].mean())}


if __name__ == "__main__":
    main()
