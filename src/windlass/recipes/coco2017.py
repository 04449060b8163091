"""COCO 2017: images and annotations, laid out as the Mask R-CNN scripts of TensorPack and AWS read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from windlass.errors import StorageError
from windlass.recipes.archive import Archive
from windlass.recipes.recipe import Download, Layout, LeaveOut, NewFile, Recipe

HOST: Final = "http://images.cocodataset.org/"
FOLDERS: Final = {"train2017.zip": "train2017", "val2017.zip": "val2017", "annotations_trainval2017.zip": "annotations"}
"""Archive → folder that it has."""
NEEDED: Final = ("annotations/instances_train2017.json", "annotations/instances_val2017.json")
LIMIT_BYTES: Final = 64 << 30


def convert(files: Mapping[str, Path], leave_out: LeaveOut) -> Iterator[NewFile]:
    """The files of the three archives. Raises StorageError."""
    for name, folder in FOLDERS.items():
        with Archive(files[name], LIMIT_BYTES) as archive:
            wanted = [one.name for one in archive.members if one.name.startswith(f"{folder}/")]
            for needed in NEEDED if folder == "annotations" else ():
                if needed not in wanted:
                    raise StorageError(f"{name} has no file {needed}")
            if not wanted:
                raise StorageError(f"{name} has no file below {folder}/")
            for one in archive.members:
                if not one.name.startswith(f"{folder}/"):
                    leave_out(one.name, f"it is not below {folder}/")
            for member, pieces in archive.files(wanted):
                yield NewFile(member.name, pieces)


def _download(path: str, num_bytes: int, sha256: str) -> Download:
    return Download(path.rpartition("/")[2], f"{HOST}{path}", num_bytes, (f"sha256:{sha256}",), "TensorFlow Datasets")


RECIPE: Final = Recipe(
    name="coco2017",
    title="COCO 2017: 118,287 + 5,000 images with boxes, masks, keypoints and captions",
    downloads=(
        _download(
            "zips/train2017.zip", 19_336_861_798, "69a8bb58ea5f8f99d24875f21416de2e9ded3178e903f1f7603e283b9e06d929"
        ),
        _download("zips/val2017.zip", 815_585_330, "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05"),
        _download(
            "annotations/annotations_trainval2017.zip",
            252_907_541,
            "113a836d90195ee1f884e704da6304dfaaecff1f023f49b6ca93c4aaae470268",
        ),
    ),
    layouts={
        "coco": Layout("train2017/, val2017/, annotations/*.json", tuple(FOLDERS.values()), 21_000_000_000, convert)
    },
    default=("coco",),
    homepage="https://cocodataset.org",
    licence="annotations CC BY 4.0, © COCO Consortium; each image has its own, by the terms of use of Flickr",
    citation="T.-Y. Lin et al.: Microsoft COCO: Common Objects in Context. ECCV 2014",
    note="COCO itself publishes no checksums: these are the ones that TensorFlow Datasets keeps. The backbone weights "
    "of the Mask R-CNN scripts are a recipe of their own: imagenet-r50.",
)
