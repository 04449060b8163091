"""ResNet-50 weights of TensorPack, trained on ImageNet: the backbone of the Mask R-CNN scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from windlass.recipes.formats import npz
from windlass.recipes.recipe import Download, Layout, LeaveOut, NewFile, Recipe
from windlass.storage.place import system_errors

FILE: Final = "ImageNet-R50-AlignPadding.npz"
PATH: Final = f"pretrained-models/{FILE}"
LIMIT_BYTES: Final = 1 << 30
PIECE_BYTES: Final = 1 << 20


def convert(files: Mapping[str, Path], _leave_out: LeaveOut) -> Iterator[NewFile]:
    """The file itself, once it was found to be whole and to have arrays alone. Raises StorageError."""
    npz.check(files[FILE], LIMIT_BYTES)
    yield NewFile(PATH, _pieces(files[FILE]))


def _pieces(path: Path) -> Iterator[bytes]:
    with system_errors(str(path)), open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


RECIPE: Final = Recipe(
    name="imagenet-r50",
    title="ResNet-50 backbone weights, trained on ImageNet, for TensorPack's Mask R-CNN",
    downloads=(Download(FILE, f"http://models.tensorpack.com/FasterRCNN/{FILE}"),),
    layouts={"npz": Layout(PATH, (PATH,), 96_000_000, convert)},
    default=("npz",),
    homepage="http://models.tensorpack.com/FasterRCNN/",
    licence="none stated for the weights; ImageNet is for research that is not commercial",
    citation="K. He, X. Zhang, S. Ren, J. Sun: Deep Residual Learning for Image Recognition. CVPR 2016; Y. Wu et al.: "
    "Tensorpack, 2016, https://github.com/tensorpack",
    note="This recipe has no checksum of the file, and its host is read by http: compare the SHA-256 that is printed "
    "with the one at the homepage. The file is refused if an array is damaged or has Python objects.",
)
