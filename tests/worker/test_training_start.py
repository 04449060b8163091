"""The start of a rank's training is detected in realistic output: first steps, and restores logged by the script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass.worker.progress import Recogniser
from windlass.worker.training_start import LOOK_BYTES, restored

TORCH = "[2026-06-10 18:22:44,707] [INFO] [torch_checkpoint_engine.py:27:load] [Torch] Loading checkpoint from "

RESTORES: list[tuple[str, dict[str, Any]]] = [
    # transformers
    (
        "[INFO|trainer.py:2411] 2026-03-01 10:00:00,123 >>   Continuing training from checkpoint, will skip to saved "
        "global_step",
        {},
    ),
    ("  Continuing training from epoch 3", {"epoch": 3}),
    ("  Continuing training from global step 7000", {"step": 7000}),
    (
        "03/01/2026 10:00:00 - INFO - __main__ - Checkpoint detected, resuming training at "
        "out/checkpoint-7000. To avoid "
        "this behavior, change the `--output_dir` or add `--overwrite_output_dir` to train from scratch.",
        {"step": 7000},
    ),
    # Lightning
    ("Restoring states from the checkpoint path at /x/epoch=3-step=180.ckpt", {"step": 180, "epoch": 3}),
    (
        "Restored all states from the checkpoint at /x/lightning_logs/version_0/checkpoints/epoch=3-step=180.ckpt",
        {"step": 180, "epoch": 3},
    ),
    ("Restored all states from the checkpoint file at /x/last.ckpt", {}),
    # ultralytics, YOLOv5
    ("Resuming training runs/detect/train/weights/last.pt from epoch 12 to 100 total epochs", {"epoch": 12}),
    (
        "\x1b[34m\x1b[1mResuming training\x1b[0m from runs/train/exp/weights/last.pt from epoch 12 to 300 total epochs",
        {"epoch": 12},
    ),
    # nanoGPT, torchrun's example with snapshots
    ("Resuming training from out", {}),
    ("Resuming training from snapshot at Epoch 12", {"epoch": 12}),
    # accelerate and its examples
    ("INFO:accelerate.accelerator:Loading states from out/step_500", {"step": 500}),
    ("Resumed from checkpoint: epoch_3", {"epoch": 3}),
    ("Resuming from checkpoint checkpoint-1500", {"step": 1500}),
    # DeepSpeed, Megatron, torchtitan
    (f"{TORCH}/c/checkpoint-2/global_step200/mp_rank_00_model_states.pt...", {"step": 200}),
    ("[Rank 0] Loading checkpoint from /out/global_step500", {"step": 500}),
    (" loading checkpoint from /ckpts at iteration 500", {"step": 500}),
    ("  successfully loaded checkpoint from /ckpts [ t 0, p 0 ] at iteration 500", {"step": 500}),
    ("[titan] 2026-01-01 10:00:00,000 - root - INFO - Training starts at step 501.", {"step": 500}),
    # MMEngine, Detectron2, timm, torchvision's and fairseq's
    ("05/11 14:58:00 - mmengine - INFO - Auto resumed from the latest checkpoint /w/iter_300.pth.", {"step": 300}),
    ("05/11 14:58:00 - mmengine - INFO - resumed epoch: 60, iter: 29040", {"step": 29040, "epoch": 60}),
    ("[05/11 14:58:00 d2.engine.train_loop]: Starting training from iteration 500", {"step": 500}),
    ("Loaded checkpoint './output/last.pth.tar' (epoch 12)", {"epoch": 12}),
    ("=> loaded checkpoint 'checkpoint.pth.tar' (epoch 12)", {"epoch": 12}),
    (
        "2026-01-01 | INFO | fairseq.trainer | Loaded checkpoint c/checkpoint_last.pt (epoch 12 @ 5000 updates)",
        {"step": 5000, "epoch": 12},
    ),
]

OTHERS = [
    "",
    "Starting training from iteration 0",
    "Training starts at step 1",
    "Resuming training from scratch",
    "Loading checkpoint shards: 100%|##########| 4/4 [00:01<00:00,  3.1it/s]",
    "resume_from_checkpoint: null",
    "Resuming from checkpoint: None",
    "No checkpoint found, not resuming from out",
    "resume: out/checkpoint-500",
    "Loaded checkpoint from pretrained/resnet50.pth",
    "Loading pretrained weights from resnet_step_500.pt",
    "To resume training from this checkpoint, pass --resume",
    "Failed to load checkpoint from out (epoch 3)",
    "Could not find a checkpoint; would be resuming from epoch 3",
    "loading file vocab.json from cache at /x",
    "Saved checkpoint at step 500",
    "Resuming training from out " + "x" * 4000,
]


@pytest.mark.parametrize(("line", "names"), RESTORES)
def test_restore_line_is_found_with_its_step_or_epoch(line: str, names: dict[str, Any]) -> None:
    found = restored(line)
    assert found is not None
    assert {name: value for name, value in found.items() if name != "line"} == names
    assert found["line"]
    assert len(found["line"]) <= 200
    assert "\x1b" not in found["line"]


@pytest.mark.parametrize("line", OTHERS)
def test_other_line_is_not_a_restore(line: str) -> None:
    assert restored(line) is None


def read(*chunks: str, pattern: str | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the restores and first steps found in the output of a rank, while reading and at the end."""
    recogniser = Recogniser(pattern)
    for chunk in chunks:
        recogniser.feed(chunk.encode())
    first = [recogniser.beginning.take(), recogniser.beginning.take(at_end=True)]
    return recogniser.checkpoints, [one for one in first if one is not None]


def structured(**fields: Any) -> str:
    return f"::windlass {json.dumps(fields)}\n"


def test_first_steps_are_found_in_a_chunk_of_many_lines() -> None:
    lines = [f"iter {step}: loss 2.5, time 3.1ms\n" for step in range(1000, 9000, 10)]
    assert read("".join(lines)) == ([], [{"step": 1000, "every": 10}])
    assert read(*lines) == ([], [{"step": 1000, "every": 10}])


def test_empty_bar_before_the_resumed_step_is_ignored() -> None:
    """transformers' Trainer draws its bar at 0 after a resume."""
    bars = "\r  0%|          | 0/300 [00:00<?, ?it/s]\r 14%|#4   | 41/300 [00:00<00:01, 36.1it/s]"
    bars += "\r 14%|#4   | 42/300 [00:00<00:01, 36.1it/s]\r"
    assert read(bars)[1] == [{"step": 41, "every": 1}]
    assert read("step 0 loss 3.5\nstep 10 loss 3.1\n")[1] == [{"step": 0, "every": 10}]


def test_checkpoint_loaded_after_a_loss_is_not_a_restore() -> None:
    loaded = "=> loaded checkpoint 'best.pt' (epoch 3)\n"
    assert [one["epoch"] for one in read(loaded + "epoch 4/8 train_loss 0.5\n")[0]] == [3]
    assert read("epoch 1/4 train_loss 0.5\nepoch 2/4 train_loss 0.4\n" + loaded)[0] == []


def test_single_step_is_reported_at_the_end() -> None:
    assert read("step 500 loss 3.5\n") == ([], [{"step": 500}])


def test_reported_steps_replace_steps_of_a_bar() -> None:
    bar = "".join(f"\rEpoch 3:  {step}%|# | {step}/100 [00:00<00:01, 36.1it/s]" for step in (1, 2, 3))
    reported = structured(step=7010, loss=0.5) + structured(step=7020, loss=0.5)
    assert read(bar + "\n" + reported)[1] == [{"step": 7010, "every": 10}]
    recogniser = Recogniser()
    recogniser.feed(bar.encode() + b"\n")
    assert recogniser.beginning.take() == {"step": 1, "every": 1}
    recogniser.feed(structured(step=7010).encode())
    assert recogniser.beginning.take() is None
    recogniser.feed(structured(step=7020).encode())
    assert recogniser.beginning.take() == {"step": 7010, "every": 10}
    assert recogniser.beginning.take(at_end=True) is None


def test_steps_of_a_bar_replace_steps_posted_by_a_trainer() -> None:
    """The Trainer posts step 0 before it knows the step of the checkpoint, and the next step five seconds later."""
    recogniser = Recogniser()
    recogniser.beginning.report("posted", 0)
    recogniser.feed(b"Continuing training from checkpoint-100\r")
    recogniser.feed(b" 25%|##5   | 103/400 [00:00<00:09, 36.1it/s]\r 29%|##9   | 118/400 [00:00<00:09, 36.1it/s]\r")
    assert [event["step"] for event in recogniser.checkpoints] == [100]
    assert recogniser.beginning.take() == {"step": 103, "every": 15}
    recogniser.beginning.report("posted", 303)
    assert recogniser.beginning.take(at_end=True) is None


def test_steps_posted_by_a_trainer_count_without_a_bar() -> None:
    recogniser = Recogniser()
    recogniser.beginning.report("posted", 0)
    recogniser.beginning.report("posted", 303)
    assert recogniser.beginning.take() == {"step": 0, "every": 303}


def test_first_steps_are_found_by_the_progress_pattern() -> None:
    assert read("n=7 \nn=9 \n", pattern=r"n=(?P<step>\d+) ")[1] == [{"step": 7, "every": 2}]


def test_restore_is_reported_again_once_its_step_is_known() -> None:
    said = [
        "Continuing training from checkpoint, will skip",
        "Continuing training from epoch 3",
        "Continuing training from global step 7000",
        "Continuing training from checkpoint, will skip",
    ]
    found, _ = read("\n".join(said) + "\n")
    assert [(event["action"], event["source"], event.get("step")) for event in found] == [
        ("restored", "log", None),
        ("restored", "log", None),
        ("restored", "log", 7000),
    ]


def test_checkpoint_loaded_after_the_first_step_is_not_a_restore() -> None:
    """For example the best checkpoint, loaded for a test after training."""
    assert read("step 1 loss 0.5\nRestoring states from the checkpoint path at /x/step=180.ckpt\n")[0] == []


def test_search_for_the_start_is_limited() -> None:
    recogniser = Recogniser()
    chunk = b"loading something else\n" * 1000
    for _ in range(LOOK_BYTES // len(chunk) + 1):
        recogniser.feed(chunk)
    assert not recogniser.beginning.is_open
    recogniser.feed(b"Resuming training from out\n")
    assert recogniser.checkpoints == []


def test_bars_before_the_training_do_not_end_the_search() -> None:
    """A tokenizer draws its bar ten times per second."""
    recogniser = Recogniser()
    bar = b"Map:  34%|###4      | 340/1000 [00:12<00:23, 28.0 examples/s]\r" * 1000
    for _ in range(LOOK_BYTES // len(bar) + 1):
        recogniser.feed(bar)
    recogniser.feed(b"step 1 loss 0.5\nstep 2 loss 0.5\n")
    assert recogniser.beginning.take() == {"step": 1, "every": 1}
