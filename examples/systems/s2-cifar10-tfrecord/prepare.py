"""Downloads CIFAR-10 and writes it as TFRecords of 40,000, 10,000 and 10,000 images.

`python prepare.py` writes train/train.tfrecords, validation/validation.tfrecords and eval/eval.tfrecords below
data/cifar10-tfrecord; `--to s3://bucket/cifar10-dataset/` also copies them to a bucket. The features are `image`, the
3 × 32 × 32 bytes (red, green, blue; row by row), and `label`, 0 to 9. NumPy is needed, TensorFlow is not.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
"""As Keras has it. The authors publish the MD5 c58f30108f718f92721af3b95e74349a."""
SPLITS = {
    "train": ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4"],
    "validation": ["data_batch_5"],
    "eval": ["test_batch"],
}


def main(words: list[str] | None = None) -> None:
    args = parse_args(words)
    if not args.folder.exists():
        data_copy(args.url, str(args.archives), "--sha256", SHA256)
        convert(args.archives / Path(args.url).name, args.folder)
    if args.to:
        data_copy(str(args.folder), args.to)


def parse_args(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("data/cifar10-tfrecord"),
        help="where to write the set (default: %(default)s)",
    )
    parser.add_argument("--to", metavar="ADDRESS", help="then copy it there: s3://bucket/prefix/, or a folder")
    parser.add_argument(
        "--archives", type=Path, default=Path("archives"), help="where the archive is kept (default: %(default)s)"
    )
    parser.add_argument("--url", default=URL, help="address of the archive (default: %(default)s)")
    return parser.parse_args(words)


def data_copy(source: str, destination: str, *options: str) -> None:
    """Copy a file or a folder. The command continues where an earlier copy was interrupted."""
    done = subprocess.run([sys.executable, "-m", "windlass", "data", "copy", source, destination, *options])
    if done.returncode:
        raise SystemExit(done.returncode)


def convert(archive: Path, folder: Path) -> None:
    """Write a file of records for each split. The folder appears when it is complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        for split, names in SPLITS.items():
            (partial / split).mkdir(parents=True)
            with open(partial / split / f"{split}.tfrecords", "wb") as file:
                for name in names:
                    file.write(records(examples(tar, name)))
    partial.rename(folder)


def examples(tar: tarfile.TarFile, name: str) -> list[bytes]:
    """The images of a batch, each as a `tf.train.Example`."""
    file = tar.extractfile(f"cifar-10-batches-py/{name}")
    assert file is not None
    batch = pickle.load(file, encoding="bytes")  # of the authors: the SHA-256 of the archive was compared
    pairs = zip(batch[b"data"], batch[b"labels"], strict=True)
    return [example({"image": image.tobytes(), "label": label}) for image, label in pairs]


# -- TFRecord: https://www.tensorflow.org/tutorials/load_data/tfrecord -----------------------------------------------


def records(rows: Sequence[bytes]) -> bytes:
    """A record for each of these rows, which have the same length.

    A record is the length (8 bytes, little-endian), the masked CRC-32C of these bytes, the data, and the masked CRC-32C
    of the data.
    """
    head = struct.pack("<Q", len(rows[0]))
    head += masked_crc32c([head])[0]
    return b"".join(head + row + crc for row, crc in zip(rows, masked_crc32c(rows), strict=True))


def masked_crc32c(rows: Sequence[bytes]) -> list[bytes]:
    """The checksum of each row as TFRecord stores it: rotated, plus a constant, little-endian."""
    crc = crc32c(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1))
    masked = (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)
    return [one.tobytes() for one in masked.astype("<u4")]


def crc32c(rows: np.ndarray) -> np.ndarray:
    """CRC-32C (RFC 3720) of each row of bytes. All rows are computed together, one column after the other."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> 1 ^ (table & 1) * np.uint32(0x82F63B78)
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = table[(crc ^ column) & 0xFF] ^ crc >> 8
    return ~crc


def example(features: dict[str, bytes | int]) -> bytes:
    """A `tf.train.Example` in the wire format of protobuf: each feature has one value, of bytes or an integer."""
    entries = [field(1, name.encode()) + field(2, feature(value)) for name, value in features.items()]
    return field(1, b"".join(field(1, entry) for entry in entries))


def feature(value: bytes | int) -> bytes:
    """A `bytes_list` or an `int64_list` with one value."""
    return field(1, field(1, value)) if isinstance(value, bytes) else field(3, field(1, varint(value)))


def field(number: int, data: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """An integer that is not negative: seven bits a byte, the lowest first."""
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


if __name__ == "__main__":
    main()
