"""MNIST: 70,000 handwritten digits of 28 × 28 pixels, as IDX files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from windlass.errors import StorageError
from windlass.recipes.archive import gunzipped
from windlass.recipes.formats.idx import shape_of
from windlass.recipes.recipe import Convert, Download, Layout, LeaveOut, NewFile, Recipe

HOST: Final = "https://ossci-datasets.s3.amazonaws.com/mnist/"
LIMIT_BYTES: Final = 1 << 28
"""Of one file when it is unpacked; the largest has 45 MiB."""
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def _download(name: str, num_bytes: int, md5: str, sha256: str) -> Download:
    checksums = (f"sha256:{sha256}", f"md5:{md5}")
    return Download(name, f"{HOST}{name}", num_bytes, checksums, "TensorFlow Datasets and torchvision")


def _layout(folder: str, summary: str) -> Layout:
    names = tuple(f"{part}-{kind}" for part in ("train", "t10k") for kind in (IMAGES, LABELS))
    entries = (folder,) if folder else names
    return Layout(summary, entries, 54_950_048, _convert(f"{folder}/" if folder else ""))


def _convert(below: str) -> Convert:
    def convert(files: Mapping[str, Path], _leave_out: LeaveOut) -> Iterator[NewFile]:
        for part in ("train", "t10k"):
            counts = []
            for kind in (IMAGES, LABELS):
                name = f"{part}-{kind}"
                data = gunzipped(files[f"{name}.gz"], LIMIT_BYTES)
                counts.append(shape_of(name, data)[0])
                yield NewFile(f"{below}{name}", [data])
            if counts[0] != counts[1]:
                raise StorageError(f"{part}: {counts[0]:,} images have {counts[1]:,} labels")

    return convert


RECIPE: Final = Recipe(
    name="mnist",
    title="MNIST: 60,000 + 10,000 handwritten digits, 28 × 28 pixels",
    downloads=(
        _download("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                  "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        _download("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432",
                  "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        _download("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3",
                  "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        _download("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c",
                  "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    layouts={
        "idx": _layout("", "the four IDX files, unpacked"),
        "torchvision": _layout("MNIST/raw", "the same in MNIST/raw, for torchvision.datasets.MNIST"),
    },
    default=("idx",),
    homepage="http://yann.lecun.com/exdb/mnist/",
    licence="none in the files; Keras states CC BY-SA 3.0, © Yann LeCun and Corinna Cortes",
    citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition. "
             "Proceedings of the IEEE 86(11), 1998",
    note="The authors' site no longer serves the files; this is the copy that torchvision reads first.",
)  # fmt: skip
