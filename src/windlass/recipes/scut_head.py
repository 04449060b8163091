"""SCUT-HEAD: heads in classrooms and on the web; from Pascal VOC to the labels of YOLO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from windlass.errors import StorageError
from windlass.recipes.archive import Archive
from windlass.recipes.formats import voc, yolo
from windlass.recipes.recipe import Download, Layout, LeaveOut, NewFile, Recipe

PARTS: Final = {
    "SCUT_HEAD_Part_A.zip": "1DWZHnmcOR8H9adXRRMV_DaOLCnBEcMLi",
    "SCUT_HEAD_Part_B.zip": "1G298UFgHElio4c5UdyvR9LsP7kJscOlJ",
}
"""Archive → its id at Google Drive."""
LISTS: Final = {"test": "test", "val": "val", "train": "train", "trainval": "train"}
"""List of VOC → split. An image that is in several is in the first."""
HEAD: Final = 0
"""The class of all objects, whatever an annotation calls them."""
IMAGE_ENDS: Final = (".jpg", ".jpeg", ".png")
LIMIT_BYTES: Final = 16 << 30


class _Image(NamedTuple):
    stem: str
    split: str
    image: str
    """Member of the archive."""
    annotation: str


def convert(files: Mapping[str, Path], leave_out: LeaveOut) -> Iterator[NewFile]:
    """Images and labels by split, and data.yaml. Raises StorageError."""
    seen: dict[str, str] = {}
    splits = set()
    for name in PARTS:
        with Archive(files[name], LIMIT_BYTES) as archive:
            images = _images(name, archive, leave_out)
            labels = dict(_labels(archive, images, leave_out))
            of = {one.image: one for one in images if one.image in labels}
            for member, pieces in archive.files(of):
                one = of[member.name]
                if seen.setdefault(one.stem, name) != name:
                    raise StorageError(f"{name} and {seen[one.stem]} both have an image {one.stem}")
                splits.add(one.split)
                yield NewFile(f"images/{one.split}/{one.stem}{Path(member.name).suffix}", pieces)
                yield NewFile(f"labels/{one.split}/{one.stem}.txt", [labels[member.name].encode()])
    folders: dict[str, str] = {split: f"images/{split}" for split in ("train", "val", "test") if split in splits}
    if "train" not in folders:
        raise StorageError("the archives have no image for training")
    if "val" not in folders:
        folders["val"] = folders.get("test", folders["train"])
    yield NewFile("data.yaml", [yolo.data_yaml(folders, ["head"]).encode()])


def _images(name: str, archive: Archive, leave_out: LeaveOut) -> list[_Image]:
    """All images that a list names, once each."""
    by_folder: dict[str, dict[str, str]] = {"Annotations": {}, "JPEGImages": {}, "Main": {}}
    for one in archive.members:
        path = Path(one.name)
        if path.parent.name in by_folder and path.suffix.lower() in (".xml", ".txt", *IMAGE_ENDS):
            by_folder[path.parent.name][path.stem] = one.name
    if not by_folder["Main"] or not by_folder["JPEGImages"]:
        raise StorageError(f"{name} is not laid out as Pascal VOC: it lacks JPEGImages/ or ImageSets/Main/")
    found: dict[str, _Image] = {}
    for list_, split in LISTS.items():
        lines = archive.read(by_folder["Main"][list_]).splitlines() if list_ in by_folder["Main"] else []
        for stem in (words[0].decode("utf-8", "replace") for line in lines if (words := line.split())):
            image, annotation = (by_folder[one].get(stem, "") for one in ("JPEGImages", "Annotations"))
            if stem not in found and image and annotation:
                found[stem] = _Image(stem, split, image, annotation)
            elif stem not in found:
                lacking = "annotation" if image else "image"
                leave_out(stem[:200], f"{list_}.txt of {name} names it, and it has no {lacking}")
    for stem, image in by_folder["JPEGImages"].items():
        if stem not in found:
            leave_out(image, f"no list of {name} names it")
    return list(found.values())


def _labels(archive: Archive, images: list[_Image], leave_out: LeaveOut) -> Iterator[tuple[str, str]]:
    """The labels of each image by its member of the archive."""
    of = {one.annotation: one for one in images}
    for member, pieces in archive.files(of):
        data = b"".join(pieces)
        try:
            lines = yolo.label_lines(voc.read(member.name, data), HEAD)
        except StorageError as error:
            leave_out(of[member.name].image, error.message)
        else:
            yield of[member.name].image, "".join(f"{line}\n" for line in lines)


def _download(name: str, identity: str) -> Download:
    return Download(name, f"https://drive.usercontent.google.com/download?id={identity}&export=download&confirm=t")


RECIPE: Final = Recipe(
    name="scut-head",
    title="SCUT-HEAD: 4,405 images with 111,251 heads",
    downloads=tuple(_download(name, identity) for name, identity in PARTS.items()),
    layouts={"yolo": Layout("images/, labels/ by split, data.yaml", ("images", "labels", "data.yaml"), None, convert)},
    default=("yolo",),
    homepage="https://github.com/HCIILAB/SCUT-HEAD-Dataset-Release",
    licence="none stated; the authors ask for the citation",
    citation="D. Peng, Z. Sun, Z. Chen, Z. Cai, L. Xie, L. Jin: Detecting Heads using Feature Refine Net and Cascaded "
    "Multi-scale Architecture. ICPR 2018",
    note="The authors publish no checksums, and host the files at Google Drive. If it answers with a page, download "
    "both in a browser, and name the folder that has them: --from FOLDER.",
)
