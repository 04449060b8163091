"""Converters on small files of the same formats: what scripts read is what the set has."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.recipes import tiny

from windlass.errors import StorageError
from windlass.recipes import cifar10, coco2017, imagenet_r50, mnist, scut_head
from windlass.recipes.archive import gunzipped
from windlass.recipes.formats import tfrecord, voc
from windlass.recipes.recipe import Convert

LeftOut = dict[str, str]
Make = Callable[[Convert, Mapping[str, bytes]], dict[str, bytes]]


@pytest.fixture
def left_out() -> LeftOut:
    return {}


@pytest.fixture
def make(tmp_path: Path, left_out: LeftOut) -> Make:
    """Calls a converter with files; gives what it makes."""

    def call(convert: Convert, files: Mapping[str, bytes]) -> dict[str, bytes]:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        paths = {name: tmp_path / name for name in files}
        made = convert(paths, lambda name, why: left_out.update({name: why}))
        return {one.name: b"".join(bytes(piece) for piece in one.pieces) for one in made}

    return call


def raised(make: Make, convert: Convert, files: Mapping[str, bytes]) -> str:
    with pytest.raises(StorageError) as refused:
        make(convert, files)
    return refused.value.message


# -- MNIST ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "below"), [("idx", ""), ("torchvision", "MNIST/raw/")])
def test_mnist_is_unpacked_to_the_names_that_scripts_read(make: Make, layout: str, below: str) -> None:
    files = tiny.mnist()
    made = make(mnist.RECIPE.layouts[layout].convert, files)
    assert made == {f"{below}{name.removesuffix('.gz')}": gzip.decompress(data) for name, data in files.items()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "has 4,703 values, and its header states 6 × 28 × 28"),
        (lambda data: data + b"x", "has 4,705 values"),
        (lambda data: b"\0\0\x0d\x03" + data[4:], "is no IDX file of unsigned bytes: it begins with 00 00 0d 03"),
        (lambda data: data[:9], "ends within its header"),
        (lambda data: b"", "begins with nothing"),
        (lambda data: data[:4] + struct.pack(">I", 5) + data[8 : 16 + 5 * 784], "5 images have 6 labels"),
    ],
)
def test_an_idx_file_that_is_not_what_its_header_states_is_refused(
    make: Make, change: Callable[[bytes], bytes], said: str
) -> None:
    files = tiny.mnist()
    name = "train-images-idx3-ubyte.gz"
    files[name] = gzip.compress(change(gzip.decompress(files[name])))
    assert said in raised(make, mnist.RECIPE.layouts["idx"].convert, files)


def test_a_gzip_file_that_is_damaged_or_far_too_large_is_refused(make: Make, tmp_path: Path) -> None:
    files, convert = tiny.mnist(), mnist.RECIPE.layouts["idx"].convert
    name = "train-images-idx3-ubyte.gz"
    for damaged in (b"<html>", files[name][:-9]):
        assert f"{name} is no gzip file, or is damaged" in raised(make, convert, {**files, name: damaged})
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(StorageError, match="has more than 1,000 bytes when it is unpacked"):
        gunzipped(tmp_path / "bomb.gz", 1000)


# -- CIFAR-10 ---------------------------------------------------------------------------------------------------------


def test_cifar10_raw_files_have_a_class_before_each_image(make: Make) -> None:
    made = make(cifar10.to_raw, tiny.cifar10())
    assert made.pop("cifar-10-batches-bin/batches.meta.txt").decode().split() == list(tiny.CLASSES)
    names = [f"data_batch_{seed}" for seed in range(1, 6)] + ["test_batch"]
    assert list(made) == [f"cifar-10-batches-bin/{name}.bin" for name in names]
    for seed, data in enumerate(made.values(), 1):
        images, labels = tiny.cifar_batch(seed)
        rows = [data[at : at + 3073] for at in range(0, len(data), 3073)]
        assert [row[0] for row in rows] == labels
        assert b"".join(row[1:] for row in rows) == images


def test_cifar10_records_are_split_as_the_workshops_read_them(make: Make) -> None:
    made = make(cifar10.to_tfrecord, tiny.cifar10())
    assert list(made) == ["train/train.tfrecords", "validation/validation.tfrecords", "eval/eval.tfrecords"]
    for data, seeds in zip(made.values(), ([1, 2, 3, 4], [5], [6]), strict=True):
        found = [features(one) for one in records(data)]
        assert [one["label"] for one in found] == [label for seed in seeds for label in tiny.cifar_batch(seed)[1]]
        assert b"".join(one["image"] for one in found) == b"".join(tiny.cifar_batch(seed)[0] for seed in seeds)


def test_cifar10_pickles_for_torchvision_are_those_of_the_archive(make: Make) -> None:
    made = make(cifar10.to_torchvision, tiny.cifar10())
    assert len(made) == 7
    assert made["cifar-10-batches-py/data_batch_2"] == tiny.cifar_pickle(2)
    [images] = [pickle.loads(made["cifar-10-batches-py/test_batch"], encoding="latin1")["data"]]  # by numpy itself
    assert (images.shape, images.tobytes()) == ((7, 3072), tiny.cifar_batch(6)[0])


def records(data: bytes) -> list[bytes]:
    """The data of a TFRecord file, read by the format alone."""
    found, file = [], io.BytesIO(data)
    while head := file.read(12):
        length, of_length = struct.unpack("<QI", head)
        found.append(file.read(length))
        [of_data] = struct.unpack("<I", file.read(4))
        assert of_length == tfrecord.masked(tfrecord.crc32c([head[:8]])[0])
        assert of_data == tfrecord.masked(tfrecord.crc32c(found[-1:])[0])
    return found


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """Number and content of each field of a protobuf message that has a length."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        assert tag & 7 == 2
        length = varint()
        found.append((tag >> 3, data[at : at + length]))
        at += length
    return found


def features(data: bytes) -> dict[str, Any]:
    """The features of a `tf.train.Example`: Example.features.feature is a map to BytesList (1) or Int64List (3)."""
    [(_, inner)] = fields(data)
    found: dict[str, Any] = {}
    for _, pair in fields(inner):
        (_, name), (_, feature) = fields(pair)
        [(kind, values)] = fields(feature)
        [(_, value)] = fields(values)
        found[name.decode()] = value if kind == 1 else value[0]
    return found


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_checksums_are_those_of_rfc_3720(data: bytes, crc: int) -> None:
    assert tfrecord.crc32c([data]) == [crc]
    assert tfrecord.crc32c([data, bytes(len(data)), data])[::2] == [crc, crc]


def test_checksums_are_of_rows_of_one_length() -> None:
    assert tfrecord.crc32c([]) == []
    with pytest.raises(ValueError, match="differ in length"):
        tfrecord.crc32c([b"1", b"22"])


def test_an_example_is_encoded_as_the_tutorial_of_tensorflow_prints_it() -> None:
    printed = (
        b"\n<\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat"
        b"\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01\x04"
    )
    assert tfrecord.example({"feature2": b"goat", "feature0": 0, "feature1": 4}) == printed


def test_a_batch_whose_labels_do_not_fit_is_refused(make: Make) -> None:
    images = tiny.Images(2, bytes(6144))
    for found, said in (
        ({"data": images, "labels": [1]}, "has 2 images and 1 labels"),
        ({"data": images, "labels": [1, 10]}, "has no labels from 0 to 9"),
        ({"data": [1], "labels": [1]}, "has no images of 3,072 values"),
    ):
        with pytest.raises(StorageError, match=said):
            list(cifar10.read_batch("data_batch_1", tiny.Python2Pickle().dump(found)))


# -- COCO 2017, weights -----------------------------------------------------------------------------------------------


def test_coco_is_laid_out_as_mask_rcnn_reads_it(make: Make, left_out: LeftOut) -> None:
    files = tiny.coco2017()
    files["val2017.zip"] = tiny.zipped({"val2017/1.jpg": b"1", "__MACOSX/val2017/1.jpg": b"-"})
    made = make(coco2017.convert, files)
    assert {name.split("/")[0] for name in made} == {"train2017", "val2017", "annotations"}
    assert [name for name in made if name.startswith("train2017/")] == [
        f"train2017/{one:012}.jpg" for one in range(1, 5)
    ]
    listed = json.loads(made["annotations/instances_train2017.json"])["images"]
    assert all(f"train2017/{one['file_name']}" in made for one in listed)
    assert list(left_out) == ["__MACOSX/val2017/1.jpg"]


def test_coco_without_its_instances_is_refused(make: Make) -> None:
    files = tiny.coco2017()
    files["annotations_trainval2017.zip"] = tiny.zipped({"annotations/instances_val2017.json": b"{}"})
    assert "has no file annotations/instances_train2017.json" in raised(make, coco2017.convert, files)
    files["train2017.zip"] = tiny.zipped({"x/1.jpg": b"1"})
    assert "train2017.zip has no file below train2017/" in raised(make, coco2017.convert, files)


def test_weights_are_kept_as_they_are(make: Make) -> None:
    files = tiny.imagenet_r50()
    assert make(imagenet_r50.convert, files) == {f"pretrained-models/{name}": data for name, data in files.items()}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a.npy": tiny.pickled_array()}, "refused for its array 'a.npy': it has Python objects"),
        ({"a.npy": tiny.npy(b"").replace(b"'<f4'", b"[('x', '|O')]")}, "not of one plain type"),
        ({"a.npy": b"text"}, "it is no numpy array"),
        ({"a.npy": b"\x93NUMPY\x01\x00\xff\xff{}"}, "its header states 65,535 bytes"),
        ({"a.npy": b"\x93NUMPY\x01\x00\x06\x00{1: 2}"}, "not of one plain type"),
        ({}, "has no array"),
    ],
)
def test_weights_that_would_be_unpickled_are_refused(make: Make, arrays: dict[str, bytes], said: str) -> None:
    assert said in raised(make, imagenet_r50.convert, {"ImageNet-R50-AlignPadding.npz": tiny.zipped(arrays)})


def test_damaged_weights_are_refused(make: Make) -> None:
    [(name, data)] = tiny.imagenet_r50().items()
    damaged = bytearray(data)
    damaged[200] ^= 1
    assert "is no archive, or is damaged" in raised(make, imagenet_r50.convert, {name: bytes(damaged)})


# -- SCUT-HEAD --------------------------------------------------------------------------------------------------------


def test_scut_head_has_images_and_labels_by_split(make: Make, left_out: LeftOut) -> None:
    made = make(scut_head.convert, tiny.scut_head())
    for kind, end in (("images", "jpg"), ("labels", "txt")):
        found = sorted(name for name in made if name.startswith(f"{kind}/"))
        of = {"test": (4,), "train": (0, 1, 2), "val": (3,)}
        assert found == [
            f"{kind}/{split}/Part{part}_{one:05}.{end}" for split in of for part in "AB" for one in of[split]
        ]
    assert made["images/val/PartB_00003.jpg"] == b"\xff\xd8PartB_00003"
    assert made["data.yaml"].decode() == (
        "train: images/train\nval: images/val\ntest: images/test\nnc: 1\nnames:\n  0: head\n"
    )
    assert not left_out


def test_boxes_are_centres_and_sizes_in_parts_of_the_image_cut_at_its_edges(make: Make) -> None:
    made = make(scut_head.convert, tiny.scut_head())
    assert made["labels/train/PartA_00000.txt"] == b""
    # Pixels 1 to 20 of 200 and 1 to 10 of 100; then 181 to 220 of 200, of which 20 are in the image.
    first, second = "0 0.050000 0.050000 0.100000 0.100000", "0 0.950000 0.500000 0.100000 0.200000"
    assert made["labels/train/PartA_00002.txt"].decode().splitlines() == [first, second]


def test_what_a_list_names_and_is_not_there_is_left_out_by_name(make: Make, left_out: LeftOut) -> None:
    files = tiny.scut_head()
    root = "SCUT_HEAD_Part_A"
    inside = {
        f"{root}/JPEGImages/a.jpg": b"a",
        f"{root}/Annotations/a.xml": tiny.voc("a", []),
        f"{root}/JPEGImages/b.JPG": b"b",
        f"{root}/Annotations/b.xml": b"<annotation><size/></annotation>",
        f"{root}/JPEGImages/c.jpg": b"c",
        f"{root}/Annotations/c.xml": tiny.voc("c", []),
        f"{root}/JPEGImages/d.jpg": b"d",
        f"{root}/ImageSets/Main/train.txt": b"a\nb 1\r\n\nd -1\ne",
    }
    made = make(scut_head.convert, {**files, f"{root}.zip": tiny.zipped(inside)})
    assert [name for name in made if name.startswith("images/") and "PartB" not in name] == ["images/train/a.jpg"]
    assert left_out["d"].endswith("it has no annotation")
    assert left_out["e"].endswith("it has no image")
    assert left_out[f"{root}/JPEGImages/c.jpg"] == f"no list of {root}.zip names it"
    assert "b.xml is no annotation of Pascal VOC: size/width is ''" in left_out[f"{root}/JPEGImages/b.JPG"]


def test_two_images_of_one_name_are_refused(make: Make) -> None:
    files = tiny.scut_head()
    files["SCUT_HEAD_Part_B.zip"] = files["SCUT_HEAD_Part_A.zip"]
    assert "both have an image PartA_00000" in raised(make, scut_head.convert, files)


@pytest.mark.parametrize(
    ("xml", "said"),
    [
        (b'<!DOCTYPE a [<!ENTITY x "y">]><annotation/>', "declares a document type"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "declares a document type"),
        (b"<annotation>&x;</annotation>", "undefined entity"),
        (b"<annotation>", "no element found"),
        (b"<html/>", "its element is html"),
        (tiny.voc("x", [], (0, 10)), "its image has the size 0 × 10"),
        (tiny.voc("x", [(1, 1, 2, 2)]).replace(b"<xmin>1", b"<xmin>nan"), "bndbox/xmin is 'nan'"),
        (tiny.voc("x", [(1, 1, 2, 2)]).replace(b"<name>person</name>", b""), "an object has no name"),
    ],
)
def test_annotations_that_are_hostile_or_damaged_are_refused(xml: bytes, said: str) -> None:
    with pytest.raises(StorageError, match=re.escape(said)):
        voc.read("x.xml", xml)
