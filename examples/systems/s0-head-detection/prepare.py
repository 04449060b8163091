"""Downloads SCUT-HEAD and converts it from Pascal VOC to images and labels in the layout of YOLO.

`python prepare.py` writes data/heads; `--to s3://bucket/scut-head/` also copies it to a bucket. Archives are kept in
`archives/`. One that is there is not downloaded: where Google Drive answers with a page instead of the file, download
the archives in a browser, and put them there.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
ARCHIVES = {
    "SCUT_HEAD_Part_A.zip": f"{DRIVE}1DWZHnmcOR8H9adXRRMV_DaOLCnBEcMLi",
    "SCUT_HEAD_Part_B.zip": f"{DRIVE}1G298UFgHElio4c5UdyvR9LsP7kJscOlJ",
}
"""The authors publish no checksums."""
SPLITS = {"test": "test", "val": "val", "train": "train", "trainval": "train"}
"""List in ImageSets/Main → split. An image that is in several lists belongs to the split of the first."""
HEAD = 0
"""Class of every object, whatever its annotation calls it."""


def main(words: list[str] | None = None) -> None:
    args = parse_args(words)
    if not args.folder.exists():
        convert([fetch(name, args.archives, args.mirror) for name in ARCHIVES], args.folder)
    if args.to:
        data_copy(str(args.folder), args.to)


def parse_args(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=Path("data/heads"), help="where to write the set (default: %(default)s)"
    )
    parser.add_argument("--to", metavar="ADDRESS", help="then copy it there: s3://bucket/prefix/, or a folder")
    parser.add_argument(
        "--archives", type=Path, default=Path("archives"), help="where archives are kept (default: %(default)s)"
    )
    parser.add_argument("--mirror", metavar="URL", help="address below which the archives are, instead of Google Drive")
    return parser.parse_args(words)


def fetch(name: str, archives: Path, mirror: str | None) -> Path:
    path = archives / name
    if not path.exists():
        incoming = archives / f"{path.stem}.download"
        data_copy(f"{mirror}/{name}" if mirror else ARCHIVES[name], str(incoming))
        [found] = incoming.glob("[!.]*")  # it has the name that the address ends with
        found.rename(path)
    if not zipfile.is_zipfile(path):
        raise SystemExit(f"{path} is not a zip archive: remove it, and download {name} in a browser to {archives}/")
    return path


def data_copy(source: str, destination: str) -> None:
    """Copy a file or a folder. The command continues where an earlier copy was interrupted."""
    done = subprocess.run([sys.executable, "-m", "windlass", "data", "copy", source, destination])
    if done.returncode:
        raise SystemExit(done.returncode)


# -- conversion -------------------------------------------------------------------------------------------------------


def convert(archives: list[Path], folder: Path) -> None:
    """Write images/SPLIT/, labels/SPLIT/ and data.yaml. The folder appears when it is complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    counts: Counter[str] = Counter()
    for path in archives:
        with zipfile.ZipFile(path) as archive:
            counts += convert_part(archive, partial)
    if not counts["train"]:
        raise SystemExit("the archives have no image for training")
    (partial / "data.yaml").write_text(data_yaml(counts))
    partial.rename(folder)
    print(f"{folder}: {', '.join(f'{counts[split]:,} {split}' for split in counts)}")


def convert_part(archive: zipfile.ZipFile, folder: Path) -> Counter[str]:
    """Write the images of an archive with their labels, and print which are left out. Returns images by split."""
    paths = [PurePosixPath(name) for name in archive.namelist() if not name.startswith("__MACOSX/")]
    members = {(path.parent.name, path.stem): path for path in paths if path.suffix}
    splits = read_splits(archive, members)
    counts: Counter[str] = Counter()
    for stem, split in splits.items():
        image, annotation = members.get(("JPEGImages", stem)), members.get(("Annotations", stem))
        if not image or not annotation:
            print(f"left out: {stem}: the archive has no {'annotation' if image else 'image'} of it", file=sys.stderr)
            continue
        try:
            labels = yolo_labels(archive.read(str(annotation)))
        except (ElementTree.ParseError, ValueError) as error:
            print(f"left out: {stem}: {annotation.name}: {error}", file=sys.stderr)
            continue
        write_new(folder / "images" / split / image.name, archive.read(str(image)))
        write_new(folder / "labels" / split / f"{stem}.txt", labels.encode())
        counts[split] += 1
    for kind, stem in members:
        if kind == "JPEGImages" and stem not in splits:
            print(f"left out: {stem}: no list names it", file=sys.stderr)
    return counts


def read_splits(archive: zipfile.ZipFile, members: dict[tuple[str, str], PurePosixPath]) -> dict[str, str]:
    """Name of each listed image, without its ending → its split."""
    splits: dict[str, str] = {}
    for name, split in SPLITS.items():
        if path := members.get(("Main", name)):
            for line in archive.read(str(path)).decode().splitlines():
                if words := line.split():
                    splits.setdefault(words[0], split)
    if not splits:
        raise SystemExit(f"{archive.filename} is not laid out as Pascal VOC: no list in ImageSets/Main")
    return splits


def yolo_labels(annotation: bytes) -> str:
    """A line `CLASS X Y WIDTH HEIGHT` for each box: its centre and its size, as fractions of the image.

    Pixels of Pascal VOC are counted from 1, and the last ones belong to the box. Boxes are cut at the edges of the
    image, and those outside of it are left out. Raises ValueError, ElementTree.ParseError.
    """
    root = ElementTree.fromstring(annotation)
    width, height = number(root, "size/width"), number(root, "size/height")
    if width < 1 or height < 1:
        raise ValueError(f"its image has the size {width:g} × {height:g}")
    lines = []
    for found in root.iter("object"):
        left, right = (number(found, "bndbox/xmin") - 1) / width, number(found, "bndbox/xmax") / width
        top, bottom = (number(found, "bndbox/ymin") - 1) / height, number(found, "bndbox/ymax") / height
        left, right, top, bottom = max(left, 0.0), min(right, 1.0), max(top, 0.0), min(bottom, 1.0)
        if right > left and bottom > top:
            box = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
            lines.append(" ".join([str(HEAD), *(f"{value:.6f}" for value in box)]))
    return "".join(f"{line}\n" for line in lines)


def number(element: ElementTree.Element, path: str) -> float:
    """The finite number at a path below an element. Raises ValueError."""
    text = element.findtext(path, default="").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{path} is {text!r}")
    return value


def data_yaml(counts: Counter[str]) -> str:
    """The file by which YOLO finds images and classes. Its paths are relative to its own folder."""
    folders = {split: f"images/{split}" for split in ("train", "val", "test") if counts[split]}
    folders.setdefault("val", folders.get("test", folders["train"]))
    lines = [f"{split}: {folder}" for split, folder in folders.items()]
    return "\n".join([*lines, "nc: 1", "names:", f"  {HEAD}: head", ""])


def write_new(path: Path, data: bytes) -> None:
    """Raises FileExistsError where both archives have an image of this name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)


if __name__ == "__main__":
    main()
