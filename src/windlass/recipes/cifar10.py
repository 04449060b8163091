"""CIFAR-10: 60,000 colour images of 32 × 32 pixels in ten classes; from pickles to raw files and TFRecords."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from windlass.errors import StorageError
from windlass.recipes.archive import Archive
from windlass.recipes.formats import pickles, tfrecord
from windlass.recipes.recipe import Download, Layout, LeaveOut, NewFile, Recipe

ARCHIVE: Final = "cifar-10-python.tar.gz"
FOLDER: Final = "cifar-10-batches-py"
RAW_FOLDER: Final = "cifar-10-batches-bin"
TRAINING: Final = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST: Final = "test_batch"
META: Final = "batches.meta"
SPLITS: Final = {"train": TRAINING[:4], "validation": TRAINING[4:], "eval": (TEST,)}
"""As the scripts of the AWS workshops read them: 40,000, 10,000 and 10,000 images."""
IMAGE_BYTES: Final = 3 * 32 * 32
LIMIT_BYTES: Final = 1 << 30


def read_batch(name: str, data: bytes) -> Iterator[tuple[bytes, int]]:
    """The images of a pickle, each 3 × 32 × 32 bytes (red, green, blue; row by row), and their classes, 0 to 9. Raises
    StorageError.
    """
    found = pickles.read(name, data)
    images, labels = found.get("data"), found.get("labels")
    if not isinstance(images, pickles.Array) or images.shape[1:] != (IMAGE_BYTES,):
        raise StorageError(f"{name} has no images of {IMAGE_BYTES:,} values")
    if not isinstance(labels, list) or not all(type(one) is int and 0 <= one < 10 for one in labels):
        raise StorageError(f"{name} has no labels from 0 to 9")
    if len(images.data) != len(labels) * IMAGE_BYTES or images.shape[0] != len(labels):
        raise StorageError(f"{name} has {len(images.data) // IMAGE_BYTES:,} images and {len(labels):,} labels")
    for number, label in enumerate(labels):
        yield images.data[number * IMAGE_BYTES : (number + 1) * IMAGE_BYTES], label


def to_raw(files: Mapping[str, Path], _leave_out: LeaveOut) -> Iterator[NewFile]:
    """The files of the binary version of the set: a byte for the class before each image."""
    with _archive(files) as archive:
        for name in (*TRAINING, TEST):
            batch = read_batch(name, archive.read(f"{FOLDER}/{name}"))
            yield NewFile(f"{RAW_FOLDER}/{name}.bin", (bytes((label,)) + image for image, label in batch))
        yield NewFile(f"{RAW_FOLDER}/batches.meta.txt", ["".join(f"{name}\n" for name in _classes(archive)).encode()])


def to_tfrecord(files: Mapping[str, Path], _leave_out: LeaveOut) -> Iterator[NewFile]:
    """A TFRecord file for each split, with the features `image` and `label`."""
    with _archive(files) as archive:
        for split, names in SPLITS.items():
            yield NewFile(f"{split}/{split}.tfrecords", _records(archive, names))


def to_torchvision(files: Mapping[str, Path], _leave_out: LeaveOut) -> Iterator[NewFile]:
    """The pickles as they are, once each was read as data: torchvision unpickles them without asking."""
    with _archive(files) as archive:
        for name in (*TRAINING, TEST, META):
            data = archive.read(f"{FOLDER}/{name}")
            pickles.read(name, data)
            yield NewFile(f"{FOLDER}/{name}", [data])


def _archive(files: Mapping[str, Path]) -> Archive:
    return Archive(files[ARCHIVE], LIMIT_BYTES)


def _records(archive: Archive, names: tuple[str, ...]) -> Iterator[bytes]:
    for name in names:
        batch = read_batch(name, archive.read(f"{FOLDER}/{name}"))
        yield from tfrecord.records([tfrecord.example({"image": image, "label": label}) for image, label in batch])


def _classes(archive: Archive) -> list[str]:
    found = pickles.read(META, archive.read(f"{FOLDER}/{META}")).get("label_names")
    if not isinstance(found, list) or not all(isinstance(one, bytes | str) for one in found):
        raise StorageError(f"{META} has no names of classes")
    return [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in found]


RECIPE: Final = Recipe(
    name="cifar10",
    title="CIFAR-10: 50,000 + 10,000 colour images in ten classes, 32 × 32 pixels",
    downloads=(
        Download(
            ARCHIVE, f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}", 170_498_071,
            ("sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
             "md5:c58f30108f718f92721af3b95e74349a"),
            "the authors (md5) and Keras (sha256)",
        ),
    ),
    layouts={
        "raw": Layout(f"{RAW_FOLDER}/*.bin: a byte for the class, then 3 × 32 × 32 bytes, for each image",
                      (RAW_FOLDER,), 184_380_061, to_raw),
        "tfrecord": Layout("train/train.tfrecords, validation/…, eval/…: 40,000, 10,000 and 10,000 images",
                           tuple(SPLITS), 189_000_000, to_tfrecord),
        "torchvision": Layout(f"{FOLDER}/: the pickles, for torchvision.datasets.CIFAR10",
                              (FOLDER,), 186_300_000, to_torchvision),
    },
    default=("raw", "tfrecord"),
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; the authors ask for the citation",
    citation="A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of "
             "Toronto, 2009",
)  # fmt: skip
