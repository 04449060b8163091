"""Much output blocks the ranks that print it, but neither their node nor its events."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.until import until

from windlass.worker.capture import LINE_BYTES, MIN_READ_BYTES, Capture
from windlass.worker.pod_log import FLOOD_BYTES, FLOOD_BYTES_A_SECOND, PIECE_BYTES, STAMP_BYTES

NODE = """
import os, sys
from windlass.worker.node import Node
from windlass.worker.pod_log import PodLog
from windlass.worker.protocol import NodeSpec, RankSpec
from windlass.worker.rank_start import ColdStart

folder, log = sys.argv[1], PodLog(os.dup(1))
ranks = tuple(
    RankSpec(number, number, ("bash", "-c", script), {}) for number, script in enumerate(sys.argv[2:])
)
env = {"WINDLASS_OUTPUT_DIR": folder + "/out"}
spec = NodeSpec(0, "train.py", sys.executable, folder, env, ranks, 60.0, folder=folder)
sys.exit(Node(spec, None, ColdStart(), log.put, log.budget).run())
"""
FLOODS = 'trap "echo > got; kill $!; exit 0" TERM; yes 12345678901234567890 & wait'
PRINTS = 'trap "exit 0" TERM; while ! [ -e got ]; do [ -e ask ] && echo quiet; sleep 0.1; done'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a node with a rank that prints without end, and a rank that prints little."""
    (tmp_path / "out").mkdir()
    with open(tmp_path / "log", "wb") as log:
        node = subprocess.Popen([sys.executable, "-c", NODE, str(tmp_path), FLOODS, PRINTS], stdout=log)
    yield node
    node.kill()
    node.wait()


def test_sigterm_reaches_a_rank_that_prints_without_end_at_once(tmp_path: Path, node: subprocess.Popen[bytes]) -> None:
    began, log = time.monotonic(), tmp_path / "log"
    until(lambda: log.stat().st_size > PIECE_BYTES)
    (tmp_path / "ask").touch()
    until(lambda: b"[1] quiet" in log.read_bytes(), seconds=20)
    node.send_signal(signal.SIGTERM)
    until(lambda: (tmp_path / "got").exists(), seconds=20)
    assert node.wait(30) == 0
    data = log.read_bytes()
    assert b'"kind": "notice"' in data
    assert b'{"kind": "end"' in data
    in_pipe = (1 << 20) * (1 + LINE_BYTES)
    limit = FLOOD_BYTES + (time.monotonic() - began) * FLOOD_BYTES_A_SECOND + in_pipe
    assert len(data) + data.count(b"\n") * STAMP_BYTES < limit


def test_limited_read_stops_where_short_lines_fill_the_log(tmp_path: Path) -> None:
    source, write = os.pipe()
    capture = Capture(source, str(tmp_path), 0, None)
    os.write(write, b"\n" * 60_000)
    assert capture.drain(0, 0)
    assert capture.length == MIN_READ_BYTES
    assert capture.drain(0, 20_000 * LINE_BYTES)
    assert 24_000 <= capture.length <= 24_000 + 2 * MIN_READ_BYTES
    os.close(write)
    assert not capture.drain(0)
    assert capture.length == 60_000
    capture.close()
