"""A small SCUT-HEAD: the archives of its two parts, with bright squares on noise as heads."""

from __future__ import annotations

import random
from pathlib import Path

from tests.examples import tiny_sets

PIXELS = 64
NUM_IMAGES = 20
"""Of each part: 16 for training and 4 for validation."""


def write_archives(folder: Path) -> None:
    """SCUT_HEAD_Part_A.zip and SCUT_HEAD_Part_B.zip, the same in each call."""
    folder.mkdir(parents=True)
    rng = random.Random(7)
    for part in "AB":
        root, files = f"SCUT_HEAD_Part_{part}", {}
        stems = [f"Part{part}_{number:05}" for number in range(NUM_IMAGES)]
        for stem in stems:
            boxes = make_boxes(rng)
            files[f"{root}/JPEGImages/{stem}.jpg"] = make_image(rng, boxes)
            files[f"{root}/Annotations/{stem}.xml"] = tiny_sets.voc(stem, boxes, (PIXELS, PIXELS))
        files[f"{root}/ImageSets/Main/train.txt"] = "\n".join(stems[:-4]).encode()
        files[f"{root}/ImageSets/Main/val.txt"] = "\n".join(stems[-4:]).encode()
        (folder / f"{root}.zip").write_bytes(tiny_sets.zipped(files))


def make_boxes(rng: random.Random) -> list[tuple[int, int, int, int]]:
    """One head in the upper half and one in the lower: first and last column and row, counted from 1."""
    found = []
    for top in (1, PIXELS // 2 + 1):
        side = rng.randrange(12, 21)
        x, y = rng.randrange(1, PIXELS - side), top + rng.randrange(PIXELS // 2 - side)
        found.append((x, y, x + side - 1, y + side - 1))
    return found


def make_image(rng: random.Random, boxes: list[tuple[int, int, int, int]]) -> bytes:
    """A binary PPM, which the script reads without a library, whatever its name."""
    pixels = bytearray(value & 0x3F for value in rng.randbytes(3 * PIXELS * PIXELS))
    for left, top, right, bottom in boxes:
        for row in range(top - 1, bottom):
            pixels[3 * (row * PIXELS + left - 1) : 3 * (row * PIXELS + right)] = b"\xe0" * (3 * (right - left + 1))
    return b"P6\n%d %d\n255\n" % (PIXELS, PIXELS) + pixels
