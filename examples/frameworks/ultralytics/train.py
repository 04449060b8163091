"""Trains a classifier of Ultralytics on generated images, from a model without weights. Knows nothing of Windlass."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from PIL import Image


def make_images(folder: Path, seed: int, num_images: int) -> None:
    """Stripes that lie, and stripes that stand, under noise."""
    rng = np.random.default_rng(seed)
    for kind in ("lying", "standing"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(num_images):
            stripes = np.tile((np.arange(32) // rng.integers(2, 5) % 2 * 255)[:, None], (1, 32))
            pixels = (stripes if kind == "lying" else stripes.T) * 0.7 + rng.uniform(0, 77, (32, 32))
            Image.fromarray(pixels.astype(np.uint8)).convert("RGB").save(folder / kind / f"{number}.png")


def train(project: Path, epochs: int, last: str | None) -> float:
    """The accuracy on the second set of images; `last` is the checkpoint to go on from, which has its own settings."""
    os.environ.setdefault("YOLO_CONFIG_DIR", str(project))  # else the import writes into the home folder
    from ultralytics import YOLO

    if last:
        return float(YOLO(last).train(resume=True).top1)
    data = project / "stripes"
    make_images(data / "train", 0, 64)
    make_images(data / "val", 1, 16)
    result = YOLO("yolo11n-cls.yaml").train(
        data=data, epochs=epochs, imgsz=32, batch=8, device="cpu", workers=0, plots=False, pretrained=False,
        optimizer="AdamW", lr0=0.002, warmup_epochs=0, auto_augment="", project=project, name="train",
    )  # fmt: skip
    return float(result.top1)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--project", type=Path, default=Path("runs"))
parser.add_argument("--resume", metavar="LAST.PT")
args = parser.parse_args()
accuracy = train(args.project.resolve(), args.epochs, args.resume)
print(f"{args.epochs} epochs, accuracy {accuracy:.2f}", flush=True)
