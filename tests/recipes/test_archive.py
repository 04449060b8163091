"""Archives and pickles that are hostile: each is refused by the name of the member, and nothing of it is read."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from tests.recipes import tiny

from windlass.errors import StorageError
from windlass.recipes.archive import Archive
from windlass.recipes.formats import pickles

LIMIT = 10_000
GOOD = {"a/one": b"1" * 100, "a/two": b"2" * 3000, "three": b""}


def tarred(*infos: tarfile.TarInfo, kind: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=kind) as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(bytes(info.size)) if info.isreg() else None)
    return out.getvalue()


def info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", num_bytes: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, num_bytes
    return made


def zip_with(name: str, mode: int = stat.S_IFREG | 0o644, data: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("before", b"x")
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, data)
    return out.getvalue()


def said(value: object) -> str:
    """The words of a case as its name: archives have the time in them."""
    return value if isinstance(value, str) else "of"


def written(folder: Path, data: bytes) -> Path:
    path = folder / "set.archive"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pack", [tiny.tar_gz, tiny.zipped])
def test_files_are_read_in_any_choice(tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes]) -> None:
    with Archive(written(tmp_path, pack(GOOD)), LIMIT) as archive:
        assert {one.name: one.num_bytes for one in archive.members} == {name: len(data) for name, data in GOOD.items()}
        assert archive.read("a/two") == GOOD["a/two"]
        found = {one.name: b"".join(pieces) for one, pieces in archive.files(["three", "a/one"])}
        assert found == {"a/one": GOOD["a/one"], "three": b""}
        with pytest.raises(StorageError, match=r"set.archive has no file a/four"):
            archive.read("a/four")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (tarred(info("../x")), "'../x': its name leads out of the folder"),
        (tarred(info("/etc/x")), "'/etc/x': its name is an absolute path"),
        (tarred(info("a/../../x/", tarfile.DIRTYPE)), "its name leads out of the folder"),
        (tarred(info("x", tarfile.SYMTYPE, "/etc/passwd")), "'x': it is a link or a device"),
        (tarred(info("x", tarfile.LNKTYPE, "/etc/passwd")), "'x': it is a link or a device"),
        (tarred(info("x", tarfile.CHRTYPE)), "'x': it is a link or a device"),
        (tarred(info("x", tarfile.FIFOTYPE)), "'x': it is a link or a device"),
        (tarred(info("x"), info("./x")), "'x': it is there twice"),
        (
            tarred(info("x", num_bytes=LIMIT), info("y", num_bytes=1)),
            "'y': its files have more than 10,000 bytes in all",
        ),
        (zip_with("../x"), "'../x': its name leads out of the folder"),
        (zip_with("/x"), "'/x': its name is an absolute path"),
        (zip_with("../x/"), "'../x/': its name leads out of the folder"),
        (zip_with("x\x1b[2J"), "its name has control characters"),
        (zip_with("x", stat.S_IFLNK | 0o777, b"/etc/passwd"), "'x': it is a link or a device"),
        (zip_with("x", stat.S_IFBLK), "'x': it is a link or a device"),
        (zip_with("bomb", data=bytes(1 << 20)), "'bomb': its files have more than 10,000 bytes in all"),
        (b"no archive at all", "set.archive is no archive, or is damaged"),
        (gzip.compress(b"no archive at all"), "set.archive is no archive, or is damaged"),
        (tarred(info("x", num_bytes=5000))[:-40], "set.archive is no archive, or is damaged"),
    ],
    ids=said,
)
def test_a_hostile_member_is_refused_by_name(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(StorageError) as refused:
        Archive(written(tmp_path, data), LIMIT)
    assert said in refused.value.message


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_name_of_many_megabytes_does_not_come_into_memory(tmp_path: Path, kind: int) -> None:
    data = tarred(info("n" * (17 << 20)), kind=kind)
    assert len(data) < 1 << 17
    with pytest.raises(StorageError, match="it has a header or a file beyond"):
        Archive(written(tmp_path, data), LIMIT)


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    data = bytearray(zip_with("x"))
    at = data.rindex(b"PK\x01\x02")
    data[at + 8] |= 1
    with pytest.raises(StorageError, match="'x': it is encrypted"):
        Archive(written(tmp_path, bytes(data)), LIMIT)


def test_a_member_that_is_larger_than_it_states_ends_at_its_size(tmp_path: Path) -> None:
    data = bytearray(zip_with("bomb", data=bytes(1 << 20)))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 100)
    with Archive(written(tmp_path, bytes(data)), LIMIT) as archive, pytest.raises(StorageError, match="is damaged"):
        archive.read("bomb")


# -- pickles ----------------------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil",)


HOSTILE = [
    (pickle.dumps({"data": Evil()}), "it names posix.system"),
    (pickle.dumps({"data": Evil()}, 0), "it names posix.system"),
    (b"cbuiltins\neval\n(S'1'\ntR.", "it names builtins.eval"),
    (b"cnumpy.core.multiarray\nscalar\n.", "it names numpy.core.multiarray.scalar"),
    (b"cnumpy\nndarray.__class__\n.", "it names numpy.ndarray.__class__"),
    (b"(S'x'\nios\nsystem\n.", "it has the opcode INST"),
    (b"\x80\x02Pid\n.", "it has the opcode PERSID"),
    (b"\x80\x02\x82\x01.", "it has the opcode EXT1"),
    (b"\x80\x02}r\xff\xff\xff\x7f.", "it has a memo of 2147483647 entries"),
    (b"\x80\x02]q\x00.", "it has no dictionary"),
    (b"\x80\x02}", "pickle exhausted"),
    (b"<html>", "is refused"),
    (b"", "is refused"),
    (pickle.dumps({"data": numpy.zeros(3)}, 2), "is refused"),
    (pickle.dumps({"data": numpy.array([{}])}, 3), "not of unsigned bytes"),
]


@pytest.mark.parametrize(("data", "said"), HOSTILE, ids=said)
def test_a_hostile_pickle_is_refused(data: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError) as refused:
        pickles.read("data_batch_1", data)
    assert said in refused.value.message
    assert not list(tmp_path.iterdir())


def test_arrays_of_numpy_are_read_without_it() -> None:
    array = numpy.arange(24, dtype=numpy.uint8).reshape(4, 6)
    for protocol in (3, 4):
        found = pickles.read("x", pickle.dumps({"data": array, "labels": [1, 2]}, protocol))
        assert (found["data"].shape, found["data"].data, found["labels"]) == ((4, 6), array.tobytes(), [1, 2])
    with pytest.raises(StorageError, match="not of unsigned bytes, row by row"):
        pickles.read("x", pickle.dumps({"data": numpy.asfortranarray(array)}, 3))
