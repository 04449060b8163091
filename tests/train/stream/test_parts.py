"""Parts of a stream: manifests, tables, tar shards, and how reads are combined."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.clock import FakeClock
from tests.train.stream.sources import Memory, open_in, pictures, tar_of

from windlass.storage import manifest as manifests
from windlass.storage.digest import Parts, combined
from windlass.storage.manifest import File, Manifest
from windlass.stores.retry import TRIES, repeated
from windlass.train.stream.errors import Busy, SourceChanged, StreamError
from windlass.train.stream.manifest import listed
from windlass.train.stream.reader import BLOCK_BYTES, Span, _near, digest_of
from windlass.train.stream.source import FolderSource
from windlass.train.stream.tables import BadTables, Strings, Tables, write
from windlass.train.stream.tar import RangeFile, members

# -- folders ----------------------------------------------------------------------------------------------------------


def test_range_read_in_several_calls_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of more than 2 GiB need several calls."""
    data, pread = bytes(range(256)) * 20, os.pread
    (tmp_path / "large.bin").write_bytes(data)
    source = FolderSource(tmp_path)
    [found] = source.objects()
    monkeypatch.setattr(os, "pread", lambda file, length, start: pread(file, min(length, 1000), start))
    assert source.read(found, 5, 3500) == data[5:3505]
    with pytest.raises(SourceChanged):
        source.read(found, 5, len(data))


# -- manifests --------------------------------------------------------------------------------------------------------


def manifest_of(files: dict[str, bytes]) -> bytes:
    """Returns a manifest like that of `windlass data copy`."""
    found = []
    for name, data in files.items():
        parts = Parts.of(len(data))
        spans = [parts.span(number) for number in range(len(parts))]
        digest = combined([hashlib.sha256(data[start : start + length]).digest() for start, length in spans])
        found.append(File(name, len(data), digest, "source", "1"))
    return Manifest.of(found).to_bytes()


FILES = {**dict(pictures(3)), "ä\n\udce4.jpg": b"x", "large.bin": bytes(2 * BLOCK_BYTES + 5)}
LEGAL = {name: data for name, data in FILES.items() if "\n" not in name}


def test_manifest_replaces_the_listing_and_whole_files_are_verified(tmp_path: Path) -> None:
    source = Memory(LEGAL, {manifests.NAME.rpartition("/")[2]: manifest_of(LEGAL)})
    found = open_in(tmp_path, source)
    assert source.num_listings == 0
    assert {one["__key__"] for one in found} == {"00000", "00001", "00002", "large"}


@pytest.mark.parametrize("name", ["00001.jpg", "large.bin"])
def test_file_that_does_not_match_the_manifest_is_named(tmp_path: Path, name: str) -> None:
    source = Memory(LEGAL, {"manifest.jsonl": manifest_of(LEGAL)})
    found = open_in(tmp_path, source)
    source.files[name] = bytes(reversed(source.files[name][:-1] + b"!"))
    with pytest.raises(StreamError, match=f"{name} does not match its manifest"):
        list(found)
    assert not any(one.name.startswith(name) for one in (tmp_path / "cache").rglob("blocks/*"))


@pytest.mark.parametrize("what", [b"manifest", b"set:", b"00001.jpg", b"sha256:", b"}"])
def test_a_damaged_manifest_is_refused(what: bytes) -> None:
    data = bytearray(manifest_of(LEGAL))
    data[data.index(what)] ^= 1
    with pytest.raises(StreamError, match="its manifest is damaged"):
        listed(Memory(LEGAL, {"manifest.jsonl": bytes(data)}))


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_digests_equal_those_of_storage(size: int) -> None:
    [one] = Manifest.from_bytes(manifest_of({"a": bytes(size)})).files.values()
    assert digest_of(bytes(size), one.digest) == one.digest


# -- tables -----------------------------------------------------------------------------------------------------------


@given(values=st.lists(st.text(st.characters(codec="utf-8"))), numbers=st.lists(st.integers(0, 2**64 - 1)))
@settings(max_examples=25)
def test_tables_are_read_as_they_were_written(
    values: list[str], numbers: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tables") / "a"
    write(path, {"x": ["y"] * 200}, {"n": array("Q", numbers), "m": array("Q")}, {"s": Strings(values)})
    found = Tables(path)
    assert list(found.numbers["n"]) == numbers
    assert [found.strings["s"][number] for number in range(len(found.strings["s"]))] == values


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_truncated_tables_are_refused(tmp_path: Path, keep: int) -> None:
    write(tmp_path / "a", {}, {"n": array("Q", range(99))}, {})
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data[:keep])
    with pytest.raises(BadTables):
        Tables(tmp_path / "a")


# -- shards and ranges ------------------------------------------------------------------------------------------------


def members_of(data: bytes) -> list[tuple[str, int, int]]:
    def block(number: int) -> bytes:
        return data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]

    file = RangeFile(len(data), block, lambda start, length: data[start : start + length])
    return list(members(file, len(data), "a.tar"))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_equal_those_found_by_tarfile(format: int) -> None:
    long = "a/" * 60 + "b" * (40 if format == tarfile.USTAR_FORMAT else 200)
    files = [
        (f"{long}.txt", b"long"),
        *pictures(200, 100_000),
        ("empty", b""),
        ("x" * 90, bytes(3 * BLOCK_BYTES)),
        ("z", b"z"),
    ]
    data = tar_of(files, format)
    assert [(name, data[start : start + size]) for name, start, size in members_of(data)] == files


def test_folders_and_links_in_a_shard_are_not_samples() -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as shard:
        for name, kind in (("folder", tarfile.DIRTYPE), ("link", tarfile.SYMTYPE), ("device", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            shard.addfile(info)
        shard.addfile(tarfile.TarInfo("file"), io.BytesIO())
    assert [name for name, _, _ in members_of(made.getvalue())] == ["file"]


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_shard_truncated_between_two_members_is_refused(num_blocks: int) -> None:
    files = pictures(3, 1000)
    whole = tar_of(files)
    end = members_of(whole)[-1]
    begin_of_last = end[1] - tarfile.BLOCKSIZE
    cut = whole[:begin_of_last] + bytes(num_blocks * tarfile.BLOCKSIZE)
    with pytest.raises(StreamError, match="it is truncated"):
        members_of(cut)
    kept = members_of(whole[:begin_of_last] + bytes(2 * tarfile.BLOCKSIZE))
    assert [name for name, _, _ in kept] == [name for name, _ in files[:-1]]


SPANS = st.builds(Span, st.integers(0, 2), st.integers(0, 50_000_000), st.integers(0, 20_000_000))


@given(st.lists(SPANS, min_size=2, max_size=9))
@settings(max_examples=50)
def test_each_span_is_contained_in_one_request(spans: list[Span]) -> None:
    groups = _near(spans)
    assert sorted(span for group in groups for span in group) == sorted(spans)
    for group in groups:
        end = max(span.start + span.length for span in group)
        assert len({span.object for span in group}) == 1
        assert end - group[0].start <= max(BLOCK_BYTES, *(span.length for span in group))


def test_permanently_busy_store_is_reported_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("windlass.stores.retry.time", clock)
    with pytest.raises(Busy, match="503"):
        repeated(_busy, busy=Busy)
    assert len(clock.waits) == TRIES - 1
    assert clock.waits[-1] > clock.waits[0]


def _busy() -> None:
    raise Busy("503 SlowDown")
