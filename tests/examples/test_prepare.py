"""The scripts that prepare the sets of the reference systems, on small files of the same formats."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.examples import tiny_sets
from tests.examples.prepare import script_of
from tests.servers.http_files import FileHost, file_host
from tests.servers.s3 import S3Server, s3_server

S0, S2, S3, S4 = "s0-head-detection", "s2-cifar10-tfrecord", "s3-cifar10", "s4-coco2017"
ARCHIVES: dict[str, Callable[[], dict[str, bytes]]] = {
    S0: tiny_sets.scut_head,
    S2: tiny_sets.cifar10,
    S3: tiny_sets.cifar10,
    S4: lambda: tiny_sets.coco2017() | tiny_sets.imagenet_r50(),
}
"""Example → the archives of its set."""
FILES = {
    S0: {"images/train/PartA_00001.jpg", "labels/train/PartA_00001.txt", "data.yaml"},
    S2: {"train/train.tfrecords", "validation/validation.tfrecords", "eval/eval.tfrecords"},
    S3: {"cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch", "cifar-10-batches-py/batches.meta"},
    S4: {
        "train2017/000000000001.jpg",
        "val2017/000000000002.jpg",
        "annotations/instances_train2017.json",
        "pretrained-models/ImageNet-R50-AlignPadding.npz",
    },
}
"""Example → files that its training scripts read."""


def written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def seen(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- S0: Pascal VOC to YOLO -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s0() -> ModuleType:
    return script_of(S0)


def converted_heads(s0: ModuleType, tmp_path: Path, files: Mapping[str, bytes]) -> dict[str, bytes]:
    s0.convert(written(tmp_path / "archives", files), tmp_path / "heads")
    assert not (tmp_path / "heads.partial").exists()
    return seen(tmp_path / "heads")


def test_heads_have_images_and_labels_by_split(
    s0: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = converted_heads(s0, tmp_path, tiny_sets.scut_head())
    of = {"test": (4,), "train": (0, 1, 2), "val": (3,)}
    for kind, end in (("images", "jpg"), ("labels", "txt")):
        assert sorted(name for name in made if name.startswith(f"{kind}/")) == [
            f"{kind}/{split}/Part{part}_{one:05}.{end}" for split in of for part in "AB" for one in of[split]
        ]
    assert made["images/val/PartB_00003.jpg"] == b"\xff\xd8PartB_00003"
    assert made["data.yaml"].decode() == (
        "train: images/train\nval: images/val\ntest: images/test\nnc: 1\nnames:\n  0: head\n"
    )
    assert capsys.readouterr().err == ""


def test_boxes_are_centres_and_sizes_in_parts_of_the_image_cut_at_its_edges(s0: ModuleType) -> None:
    assert s0.yolo_labels(tiny_sets.voc("x", [])) == ""
    # Pixels 1 to 20 of 200 and 1 to 10 of 100; then 181 to 220 of 200, of which 20 are in the image; then none of it.
    labels = s0.yolo_labels(tiny_sets.voc("x", [(1, 1, 20, 10), (181, 41, 220, 60), (201, 1, 220, 10)]))
    assert labels == "0 0.050000 0.050000 0.100000 0.100000\n0 0.950000 0.500000 0.100000 0.200000\n"


def test_images_without_a_list_or_a_usable_annotation_are_left_out_by_name(
    s0: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "A/JPEGImages/a.jpg": b"a",
        "A/Annotations/a.xml": tiny_sets.voc("a", []),
        "A/JPEGImages/b.JPG": b"b",
        "A/Annotations/b.xml": b"<annotation><size/></annotation>",
        "A/JPEGImages/c.jpg": b"c",
        "A/Annotations/c.xml": tiny_sets.voc("c", []),
        "A/JPEGImages/d.jpg": b"d",
        "__MACOSX/A/JPEGImages/._a.jpg": b"-",
        "A/ImageSets/Main/train.txt": b"a\nb 1\r\n\nd -1\ne",
    }
    made = converted_heads(s0, tmp_path, {"A.zip": tiny_sets.zipped(files)})
    assert set(made) == {"images/train/a.jpg", "labels/train/a.txt", "data.yaml"}
    assert made["data.yaml"].startswith(b"train: images/train\nval: images/train\n")
    assert capsys.readouterr().err.splitlines() == [
        "left out: b: b.xml: size/width is ''",
        "left out: d: the archive has no annotation of it",
        "left out: e: the archive has no image of it",
        "left out: c: no list names it",
    ]


def test_two_images_of_one_name_are_refused_and_no_set_appears(s0: ModuleType, tmp_path: Path) -> None:
    files = tiny_sets.scut_head()
    files["SCUT_HEAD_Part_B.zip"] = files["SCUT_HEAD_Part_A.zip"]
    with pytest.raises(FileExistsError, match=r"PartA_0000\d\.jpg"):
        converted_heads(s0, tmp_path, files)
    assert not (tmp_path / "heads").exists()
    assert "data.yaml" in converted_heads(s0, tmp_path, tiny_sets.scut_head())


@pytest.mark.parametrize(
    ("xml", "problem"),
    [
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation>&x;</annotation>', "undefined entity"),
        (b"<annotation>", "no element found"),
        (b"<html/>", "size/width is ''"),
        (tiny_sets.voc("x", [], (0, 10)), "its image has the size 0 × 10"),
        (tiny_sets.voc("x", [(1, 1, 2, 2)]).replace(b"<xmin>1", b"<xmin>nan"), "bndbox/xmin is 'nan'"),
    ],
)
def test_damaged_annotations_are_refused(s0: ModuleType, xml: bytes, problem: str) -> None:
    with pytest.raises((ElementTree.ParseError, ValueError), match=problem):
        s0.yolo_labels(xml)


def test_archives_of_a_browser_are_used_and_a_page_is_no_archive(s0: ModuleType, tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    written(archives, tiny_sets.scut_head())
    s0.main(["--folder", str(tmp_path / "heads"), "--archives", str(archives)])
    assert FILES[S0] <= set(seen(tmp_path / "heads"))
    (archives / "SCUT_HEAD_Part_B.zip").write_bytes(b"<html>too many downloads</html>")
    with pytest.raises(SystemExit, match=r"SCUT_HEAD_Part_B\.zip is not a zip archive: remove it, and download"):
        s0.main(["--folder", str(tmp_path / "again"), "--archives", str(archives)])


def test_archives_have_their_names_though_both_addresses_end_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    files, script = tiny_sets.scut_head(), script_of(S0)
    with file_host({f"{name}/download": data for name, data in files.items()}) as host:
        vars(script)["ARCHIVES"] = {name: f"{host.address}/{name}/download?id=1&confirm=t" for name in files}
        script.main([])
    assert {name: (tmp_path / "archives" / name).read_bytes() for name in files} == files
    assert FILES[S0] <= set(seen(tmp_path / "data/heads"))


# -- S2: CIFAR-10 as TFRecord -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s2() -> ModuleType:
    return script_of(S2)


def test_cifar10_records_are_split_as_the_workshops_read_them(s2: ModuleType, tmp_path: Path) -> None:
    [archive] = written(tmp_path / "archives", tiny_sets.cifar10())
    s2.convert(archive, tmp_path / "set")
    made = seen(tmp_path / "set")
    assert set(made) == FILES[S2]
    for split, seeds in (("train", [1, 2, 3, 4]), ("validation", [5]), ("eval", [6])):
        found = [features(one) for one in records(s2, made[f"{split}/{split}.tfrecords"])]
        assert [one["label"] for one in found] == [label for seed in seeds for label in tiny_sets.cifar_batch(seed)[1]]
        assert b"".join(one["image"] for one in found) == b"".join(tiny_sets.cifar_batch(seed)[0] for seed in seeds)


def records(s2: ModuleType, data: bytes) -> list[bytes]:
    """The data of a TFRecord file, read by the format alone."""
    found, file = [], io.BytesIO(data)
    while head := file.read(12):
        [length] = struct.unpack("<Q", head[:8])
        found.append(file.read(length))
        assert [head[8:]] == s2.masked_crc32c([head[:8]])
        assert [file.read(4)] == s2.masked_crc32c(found[-1:])
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
    ],
)
def test_checksums_are_those_of_rfc_3720(s2: ModuleType, data: bytes, crc: int) -> None:
    rows = np.frombuffer(data + bytes(len(data)) + data, np.uint8).reshape(3, -1)
    assert s2.crc32c(rows)[::2].tolist() == [crc, crc]


def test_an_example_is_encoded_as_the_tutorial_of_tensorflow_prints_it(s2: ModuleType) -> None:
    printed = (
        b"\n<\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat"
        b"\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01\x04"
    )
    assert s2.example({"feature2": b"goat", "feature0": 0, "feature1": 4}) == printed


# -- S3: CIFAR-10 for torchvision -------------------------------------------------------------------------------------


def test_cifar10_pickles_for_torchvision_are_those_of_the_archive(tmp_path: Path) -> None:
    [archive] = written(tmp_path / "archives", tiny_sets.cifar10())
    script_of(S3).unpack(archive, tmp_path / "set")
    made = seen(tmp_path / "set")
    assert len(made) == 7
    assert made["cifar-10-batches-py/data_batch_2"] == tiny_sets.cifar_pickle(2)
    images = pickle.loads(made["cifar-10-batches-py/test_batch"], encoding="latin1")["data"]
    assert (images.shape, images.tobytes()) == ((7, 3072), tiny_sets.cifar_batch(6)[0])


# -- S4: COCO 2017 and the backbone -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s4() -> ModuleType:
    return script_of(S4)


def test_coco_is_laid_out_as_mask_rcnn_reads_it(
    s4: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tiny_sets.coco2017()
    files["val2017.zip"] = tiny_sets.zipped({"val2017/1.jpg": b"1", "__MACOSX/val2017/1.jpg": b"-"})
    for path in written(tmp_path / "archives", files):
        s4.unpack(path, tmp_path / "set")
    made = seen(tmp_path / "set")
    assert {name.split("/")[0] for name in made} == {"train2017", "val2017", "annotations"}
    listed = json.loads(made["annotations/instances_train2017.json"])["images"]
    assert sorted(name for name in made if name.startswith("train2017/")) == [
        f"train2017/{one['file_name']}" for one in listed
    ]
    assert capsys.readouterr().err == "left out: __MACOSX/val2017/1.jpg\n"


def test_an_interrupted_unpacking_continues_with_the_files_that_are_missing(s4: ModuleType, tmp_path: Path) -> None:
    path = written(tmp_path / "archives", tiny_sets.coco2017())[0]
    s4.unpack(path, tmp_path / "set")
    whole = seen(tmp_path / "set")
    first, second, *_ = sorted((tmp_path / "set/train2017").iterdir())
    os.truncate(second, 100)
    os.utime(first, (1, 1))
    s4.unpack(path, tmp_path / "set")
    assert seen(tmp_path / "set") == whole
    assert first.stat().st_mtime == 1


def test_weights_with_python_objects_and_damaged_weights_are_refused(s4: ModuleType, tmp_path: Path) -> None:
    [(name, data)] = tiny_sets.imagenet_r50().items()
    path = tmp_path / name
    for array in (tiny_sets.pickled_array(), tiny_sets.npy(b"").replace(b"'<f4'", b"[('x', '|O')]")):
        path.write_bytes(tiny_sets.zipped({"a.npy": array}))
        with pytest.raises(SystemExit, match=r"a\.npy has Python objects"):
            s4.check_arrays(path)
    damaged = bytearray(data)
    damaged[400] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SystemExit, match="is damaged: remove the file"):
        s4.check_arrays(path)


# -- from a mirror to a folder, and to a bucket -----------------------------------------------------------------------


def words(example: str, host: FileHost) -> list[str]:
    """What the script is called with, to read a mirror."""
    [first, *_] = ARCHIVES[example]()
    return ["--url", f"{host.address}/{first}"] if example in (S2, S3) else ["--mirror", host.address]


@pytest.mark.slow
@pytest.mark.parametrize("example", ARCHIVES)
def test_a_set_is_downloaded_once_and_copied_where_it_is_asked_for(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    files = ARCHIVES[example]()
    script = script_of(example, files)
    with file_host(files) as host:
        script.main([*words(example, host), "--folder", "data/set", "--to", "elsewhere"])
        script.main([*words(example, host), "--folder", "data/set", "--to", "elsewhere"])
    downloaded = [get.name for get in host.gets if get.range != "bytes=0-0"]  # that asks for the size
    assert sorted(downloaded) == sorted(files)
    made, copied = seen(tmp_path / "data/set"), seen(tmp_path / "elsewhere")
    assert FILES[example] <= set(made)
    assert {name: data for name, data in copied.items() if not name.startswith(".")} == made


@pytest.mark.parametrize("example", [S2, S3, S4])
def test_an_archive_of_another_digest_is_refused(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    with file_host(ARCHIVES[example]()) as host, pytest.raises(SystemExit) as ended:
        script_of(example).main([*words(example, host), "--folder", "data/set"])
    assert ended.value.code == 1
    assert "damaged at its source: it should have sha256:" in capfd.readouterr().out
    assert not (tmp_path / "data/set").exists()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "buckets") as found:
        yield found


PREFIXES = {
    S0: "scut-head",
    S2: "cifar10-dataset",
    S3: "datasets/cifar10-dataset",
    S4: "ml-platform/data/coco2017",
}
"""Example → where the tutorial has the set in its bucket."""


@pytest.mark.slow
@pytest.mark.parametrize("example", PREFIXES)
def test_a_set_is_laid_out_in_a_bucket_and_verified_there(
    example: str, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    bucket, prefix = f"b-{example}", PREFIXES[example]
    to = f"s3://{bucket}/{prefix}/"
    server.client().create_bucket(Bucket=bucket)
    files = ARCHIVES[example]()
    with file_host(files) as host:
        script_of(example, files).main([*words(example, host), "--to", to])
    subprocess.run([sys.executable, "-m", "windlass", "data", "verify", to], check=True)
    found = {one["Key"] for one in server.client().list_objects_v2(Bucket=bucket)["Contents"]}
    assert {f"{prefix}/{name}" for name in FILES[example]} <= found
    assert not [key for key in found if "archives" in key or ".partial" in key]
