"""Manifests can be written and read, and invalid ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.storage.manifest import BadManifest, File, Manifest
from windlass.storage.names import problem

DIGESTS = st.builds(lambda data: f"sha256:{data.hex()}", st.binary(min_size=32, max_size=32))
NAMES = st.text(min_size=1, max_size=12).filter(lambda name: not problem(name))
FILES = st.builds(File, NAMES, st.integers(0, 2**50), DIGESTS, st.text(max_size=5), st.text(max_size=5))
SETS = st.lists(FILES, max_size=6, unique_by=lambda one: one.name)


@given(SETS)
def test_a_manifest_is_read_as_it_was_written(files: list[File]) -> None:
    written = Manifest.of(files)
    assert Manifest.from_bytes(written.to_bytes()) == written


@given(SETS, st.randoms())
def test_the_digest_is_of_names_and_contents_alone(files: list[File], rng: object) -> None:
    moved = [File(one.name, one.size, one.digest, "elsewhere", "2") for one in reversed(files)]
    assert Manifest.of(moved).digest == Manifest.of(files).digest


@given(SETS.filter(bool), st.data())
def test_a_changed_byte_is_noticed(files: list[File], data: st.DataObject) -> None:
    good = bytearray(Manifest.of(files).to_bytes())
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    try:
        found = Manifest.from_bytes(bytes(good))
    except BadManifest:
        return
    # Versions only save work, and are not part of the digest.
    assert found.digest == Manifest.of(files).digest


GOOD = {"name": "x", "size": 1, "digest": "sha256:" + "0" * 64}


@pytest.mark.parametrize(
    "line",
    [
        {**GOOD, "name": "../x"},
        {**GOOD, "size": -1},
        {**GOOD, "size": True},
        {**GOOD, "digest": "md5:0"},
        [1],
        "x",
        None,
    ],
)
def test_hostile_lines_are_refused(line: object) -> None:
    head, *_ = Manifest.of([]).to_bytes().splitlines()
    with pytest.raises(BadManifest):
        Manifest.from_bytes(head + b"\n" + json.dumps(line).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"windlass":"manifest","version":9}'])
def test_invalid_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(BadManifest):
        Manifest.from_bytes(data)
