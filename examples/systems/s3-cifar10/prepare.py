"""Downloads CIFAR-10 and unpacks the pickles that torchvision reads.

`python prepare.py` writes data/cifar10/cifar-10-batches-py; `--to s3://bucket/datasets/cifar10-dataset/` also copies
data/cifar10 to a bucket. `torchvision.datasets.CIFAR10(root="data/cifar10")` reads it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
"""As Keras has it. The authors publish the MD5 c58f30108f718f92721af3b95e74349a."""
FOLDER = "cifar-10-batches-py"
FILES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch", "batches.meta"]


def main(words: list[str] | None = None) -> None:
    args = parse_args(words)
    if not args.folder.exists():
        data_copy(args.url, str(args.archives), "--sha256", SHA256)
        unpack(args.archives / Path(args.url).name, args.folder)
    if args.to:
        data_copy(str(args.folder), args.to)


def parse_args(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("data/cifar10"), help="where to write the set (default: %(default)s)"
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


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the batches. The folder appears when it is complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        wanted = [tar.getmember(f"{FOLDER}/{name}") for name in FILES]
        tar.extractall(partial, wanted, filter="data")
    partial.rename(folder)


if __name__ == "__main__":
    main()
