"""Small sets of files in the formats of the public ones: CIFAR-10, COCO 2017, a backbone of Mask R-CNN, SCUT-HEAD."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Mapping

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_IMAGES = 7
"""Of each batch."""


def tar_gz(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)


def zipped(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # without the time
    return out.getvalue()


# -- CIFAR-10 ---------------------------------------------------------------------------------------------------------


class Python2Pickle:
    """Writes the pickles of Python 2 and its numpy, protocol 2, as those of CIFAR-10 are."""

    def __init__(self) -> None:
        self._memo = 0

    def dump(self, value: object) -> bytes:
        return b"\x80\x02" + self._bytes(value) + b"."

    def _put(self) -> bytes:
        self._memo += 1
        return b"r" + struct.pack("<I", self._memo - 1)

    def _bytes(self, value: object) -> bytes:
        match value:
            case bytes():
                head = b"U" + bytes((len(value),)) if len(value) < 256 else b"T" + struct.pack("<i", len(value))
                return head + value + self._put()
            case str():
                return self._bytes(value.encode())
            case int():
                return b"K" + bytes((value,)) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
            case list():
                return b"]" + self._put() + b"(" + b"".join(map(self._bytes, value)) + b"e"
            case dict():
                pairs = b"".join(self._bytes(one) for pair in value.items() for one in pair)
                return b"}" + self._put() + b"(" + pairs + b"u"
            case Images():
                return self._array(value)
        raise AssertionError(value)

    def _array(self, value: Images) -> bytes:
        made = b"cnumpy.core.multiarray\n_reconstruct\n" + self._put() + b"cnumpy\nndarray\n" + self._put()
        made += b"K\x00\x85" + self._put() + self._bytes(b"b") + b"\x87" + self._put() + b"R" + self._put()
        kind = b"cnumpy\ndtype\n" + self._put() + self._bytes(b"u1") + b"K\x00K\x01\x87" + self._put() + b"R"
        kind += self._put() + b"(K\x03" + self._bytes(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
        kind += self._put() + b"b"
        shape = self._bytes(value.number) + b"M" + struct.pack("<H", 3072) + b"\x86" + self._put()
        return made + b"(K\x01" + shape + kind + b"\x89" + self._bytes(value.data) + b"t" + self._put() + b"b"


@dataclasses.dataclass(frozen=True)
class Images:
    """An array of images of CIFAR-10."""

    number: int
    data: bytes


def cifar_batch(seed: int) -> tuple[bytes, list[int]]:
    """The images of a batch, one after the other, and their classes."""
    rng = random.Random(seed)
    return rng.randbytes(3072 * CIFAR_IMAGES), [rng.randrange(10) for _ in range(CIFAR_IMAGES)]


def cifar_pickle(seed: int) -> bytes:
    images, labels = cifar_batch(seed)
    names = [f"image_{seed}_{number}.png" for number in range(CIFAR_IMAGES)]
    found = {"data": Images(CIFAR_IMAGES, images), "labels": labels, "batch_label": "a batch", "filenames": names}
    return Python2Pickle().dump(found)


def cifar10() -> dict[str, bytes]:
    files = {f"cifar-10-batches-py/data_batch_{seed}": cifar_pickle(seed) for seed in range(1, 6)}
    files["cifar-10-batches-py/test_batch"] = cifar_pickle(6)
    files["cifar-10-batches-py/batches.meta"] = Python2Pickle().dump({"label_names": list(CLASSES), "num_vis": 3072})
    files["cifar-10-batches-py/readme.html"] = b"<html>"
    return {"cifar-10-python.tar.gz": tar_gz(files)}


# -- COCO, weights ----------------------------------------------------------------------------------------------------


def coco2017() -> dict[str, bytes]:
    rng = random.Random(3)
    found, annotations = {}, {}
    for part, number in (("train2017", 4), ("val2017", 2)):
        images = {f"{part}/{one:012}.jpg": rng.randbytes(900) for one in range(1, number + 1)}
        found[f"{part}.zip"] = zipped({f"{part}/": b"", **images})
        listed = [{"id": one, "file_name": f"{one:012}.jpg"} for one in range(1, number + 1)]
        for kind in ("instances", "captions", "person_keypoints"):
            annotations[f"annotations/{kind}_{part}.json"] = json.dumps({"images": listed}).encode()
    found["annotations_trainval2017.zip"] = zipped(annotations)
    return found


def npy(values: bytes, descr: str = "<f4", number: int | None = None) -> bytes:
    """An array as numpy writes it."""
    shape = f"({len(values) // 4 if number is None else number},)"
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64 + 20) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values


def imagenet_r50() -> dict[str, bytes]:
    arrays = {"conv0/W.npy": npy(random.Random(4).randbytes(4000)), "bn0/gamma.npy": npy(bytes(256))}
    return {"ImageNet-R50-AlignPadding.npz": zipped(arrays)}


def pickled_array() -> bytes:
    """An array of Python objects: reading it unpickles."""
    return npy(pickle.dumps(["x"]), "|O", 1)


# -- SCUT-HEAD --------------------------------------------------------------------------------------------------------


def voc(stem: str, boxes: list[tuple[int, int, int, int]], size: tuple[int, int] = (200, 100)) -> bytes:
    objects = "".join(
        f"<object><name>person</name><difficult>0</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
        f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in boxes
    )
    return (
        f"<annotation><folder>x</folder><filename>{stem}.jpg</filename><size><width>{size[0]}</width>"
        f"<height>{size[1]}</height><depth>3</depth></size>{objects}</annotation>"
    ).encode()


def scut_head() -> dict[str, bytes]:
    found = {}
    for part in "AB":
        root, files = f"SCUT_HEAD_Part_{part}", {}
        stems = [f"Part{part}_{number:05}" for number in range(5)]
        for number, stem in enumerate(stems):
            files[f"{root}/JPEGImages/{stem}.jpg"] = b"\xff\xd8" + stem.encode()
            files[f"{root}/Annotations/{stem}.xml"] = voc(stem, [(1, 1, 20, 10), (181, 41, 220, 60)][: number % 3])
        lists = {"trainval": stems[:4], "train": stems[:3], "val": stems[3:4], "test": stems[4:]}
        for name, of in lists.items():
            files[f"{root}/ImageSets/Main/{name}.txt"] = "\n".join(of).encode()
        found[f"{root}.zip"] = zipped(files)
    return found
