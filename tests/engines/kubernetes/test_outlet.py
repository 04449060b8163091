"""What a pod's process writes comes through a container runtime byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.supervise.log_tail import LogTail
from windlass.worker.pod_log import PIECE_BYTES, PodLog


def through_a_runtime(data: bytes) -> list[bytes]:
    """The log of a container that wrote this: containerd drops a carriage return before a newline."""
    read, write = os.pipe()
    PodLog(write).put("0", data)
    os.close(write)
    with open(read, "rb") as pipe:
        lines = pipe.read().split(b"\n")[:-1]
    return [b"2026-11-21T10:00:00.%09dZ %s" % (at, line.removesuffix(b"\r")) for at, line in enumerate(lines)]


@pytest.mark.parametrize(
    "data",
    [
        b"dos\r\nunix\n", b"\r\n", b"\r\r\n.\r\n", b"bar 50%\r", b"r.\n", b"x" * (PIECE_BYTES - 1) + b"\r\n",
        b"x" * (PIECE_BYTES - 1) + b"\ry\n",
    ],
)  # fmt: skip
def test_carriage_returns_at_the_end_of_a_line_are_kept(tmp_path: Path, data: bytes) -> None:
    mirror = LogTail(tmp_path / "attempt-1", 0, [0])
    mirror.take(through_a_runtime(data))
    assert (tmp_path / "attempt-1" / "rank-0.log").read_bytes() == data
