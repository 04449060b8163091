"""Downloads COCO 2017 and the ResNet-50 backbone, laid out as the Mask R-CNN scripts of TensorPack and AWS read them.

`python prepare.py` writes train2017/, val2017/, annotations/ and pretrained-models/ below data/coco2017;
`--to s3://bucket/data/coco2017/` also copies them to a bucket. 41 GB are needed: 20 GB for archives/, and 21 GB for the
set. Repeat a command that was interrupted: it continues.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

COCO = "http://images.cocodataset.org"
ARCHIVES = {
    f"{COCO}/zips/train2017.zip": "69a8bb58ea5f8f99d24875f21416de2e9ded3178e903f1f7603e283b9e06d929",
    f"{COCO}/zips/val2017.zip": "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05",
    f"{COCO}/annotations/annotations_trainval2017.zip": (
        "113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268"
    ),
}
"""SHA-256 of each archive, as TensorFlow Datasets has it. COCO publishes none."""
FOLDERS = ("train2017/", "val2017/", "annotations/")
NEEDED = ("train2017", "val2017", "annotations/instances_train2017.json", "annotations/instances_val2017.json")
BACKBONE = "http://models.tensorpack.com/FasterRCNN/ImageNet-R50-AlignPadding.npz"
"""No SHA-256 of it is published: compare the one that is printed with your own copy, or pass --backbone-sha256."""


def main(words: list[str] | None = None) -> None:
    args = parse_args(words)
    for url, sha256 in ARCHIVES.items():
        data_copy(mirrored(url, args.mirror), str(args.archives), "--sha256", sha256)
        unpack(args.archives / Path(url).name, args.folder)
    if missing := [name for name in NEEDED if not (args.folder / name).exists()]:
        raise SystemExit(f"the archives have no {missing[0]}")
    known = ["--sha256", args.backbone_sha256] if args.backbone_sha256 else []
    data_copy(mirrored(BACKBONE, args.mirror), str(args.archives), *known)
    backbone = args.archives / Path(BACKBONE).name
    check_arrays(backbone)
    (args.folder / "pretrained-models").mkdir(exist_ok=True)
    shutil.copy2(backbone, args.folder / "pretrained-models")
    if args.to:
        data_copy(str(args.folder), args.to)


def parse_args(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("data/coco2017"), help="where to write the set (default: %(default)s)"
    )
    parser.add_argument("--to", metavar="ADDRESS", help="then copy it there: s3://bucket/prefix/, or a folder")
    parser.add_argument(
        "--archives", type=Path, default=Path("archives"), help="where archives are kept (default: %(default)s)"
    )
    parser.add_argument("--mirror", metavar="URL", help="address below which all files are, instead of their hosts")
    parser.add_argument("--backbone-sha256", metavar="HEX", help="digest that the backbone must have")
    return parser.parse_args(words)


def mirrored(url: str, mirror: str | None) -> str:
    return f"{mirror}/{Path(url).name}" if mirror else url


def data_copy(source: str, destination: str, *options: str) -> None:
    """Copy a file or a folder. The command continues where an earlier copy was interrupted."""
    done = subprocess.run([sys.executable, "-m", "windlass", "data", "copy", source, destination, *options])
    if done.returncode:
        raise SystemExit(done.returncode)


def unpack(path: Path, folder: Path) -> None:
    """Unpack what the training scripts read; files that have their size already are kept."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            target = folder / member.filename
            if not member.filename.startswith(FOLDERS):
                print(f"left out: {member.filename}", file=sys.stderr)
            elif not (target.is_file() and target.stat().st_size == member.file_size):
                archive.extract(member, folder)


def check_arrays(path: Path) -> None:
    """Read all of the backbone, and refuse arrays of Python objects: numpy before 1.16.3 unpickles them."""
    with open(path, "rb") as file:
        print(f"{path.name}: sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}")
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise SystemExit(f"{path}: {damaged} is damaged: remove the file, and repeat the command")
        for name in archive.namelist():
            with archive.open(name) as file:
                if b"|O'" in file.read(1024):  # the header has the type
                    raise SystemExit(f"{path}: {name} has Python objects")


if __name__ == "__main__":
    main()
