"""A manifest shows whether it is intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.train.checkpoint.files import MANIFEST, list_checkpoints, seal

NAME = "step-00000120-a2f3c1"
MANIFEST_OF_ONE = {
    "format": 1,
    "step": 120,
    "epoch": 3,
    "world_size": 1,
    "attempt": 2,
    "run_id": "digits-7f3k2",
    "created_at": 1790000000.25,
    "files": {
        "rank-0.safetensors": {"bytes": 10, "crc32": "0a0b0c0d"},
        "rank-0.json": {"bytes": 5, "crc32": "01020304"},
    },
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / NAME / MANIFEST
    path.parent.mkdir()
    path.write_bytes(seal(MANIFEST_OF_ONE))
    [found] = list_checkpoints(tmp_path)
    assert (found.complete, found.step, found.epoch) == (True, 120, 3)
    return path


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_every_flipped_bit_of_a_manifest_is_detected(manifest: Path, bits: int) -> None:
    """Flips one bit of each byte, or every bit in the long version of the test."""
    content = manifest.read_bytes()
    for place in range(len(content)):
        for bit in range(place % 8, place % 8 + 1) if bits == 1 else range(bits):
            spoilt = bytearray(content)
            spoilt[place] ^= 1 << bit
            manifest.write_bytes(spoilt)
            [found] = list_checkpoints(manifest.parents[1])
            assert not found.complete, f"bit {bit} of byte {place}: {spoilt!r}"


def test_every_truncation_of_a_manifest_is_detected(manifest: Path) -> None:
    content = manifest.read_bytes()
    for length in range(len(content)):
        manifest.write_bytes(content[:length])
        [found] = list_checkpoints(manifest.parents[1])
        assert not found.complete, f"cut to {length} bytes"
        assert "manifest" in found.problem
