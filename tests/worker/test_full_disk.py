"""A node whose folder is on a full disk reports its events and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.disk import fill, small_disk
from tests.helpers.until import until

from windlass.worker.protocol import NodeSpec, RankSpec

NODE = """
import json, sys
from windlass.worker.node import Node
from windlass.worker.protocol import NodeSpec
from windlass.worker.rank_start import ColdStart

spec, is_echoed = NodeSpec.from_json(json.loads(sys.argv[1])), sys.argv[2] == "echoed"

def echo(tag, data):
    sys.stdout.write(json.dumps([tag, data.decode()]) + "\\n")
    sys.stdout.flush()

sys.exit(Node(spec, None, ColdStart(), echo if is_echoed else None).run())
"""
SPEAKS = "import os, sys\nfor line in range(1000): print('x' * 99)\nopen(sys.argv[1], 'w').close()"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 2048) as folder:
        fill(folder)
        yield folder


def start(disk: Path, tmp_path: Path, how: str) -> subprocess.Popen[str]:
    rank = RankSpec(0, 0, (sys.executable, "-c", SPEAKS, str(tmp_path / "spoke")), {})
    spec = NodeSpec(0, "", sys.executable, "/", {}, (rank,), 1.0, folder=str(disk))
    return subprocess.Popen(
        [sys.executable, "-c", NODE, json.dumps(spec.to_json()), how], stdout=subprocess.PIPE, text=True
    )


def test_echo_is_complete_on_a_full_disk(disk: Path, tmp_path: Path) -> None:
    out, _ = start(disk, tmp_path, "echoed").communicate(timeout=100)
    said = [json.loads(line) for line in out.splitlines()]
    assert sum(len(text) for tag, text in said if tag == "0") == 1000 * 100
    events = [json.loads(text) for tag, text in said if tag == "n"]
    assert events[-1]["kind"] == "end"
    assert not [event for event in events if event["kind"] == "warning"]  # logs are read from the echo


def test_node_that_cannot_write_its_end_exits_on_immediate_stop(disk: Path, tmp_path: Path) -> None:
    node = start(disk, tmp_path, "written")
    until((tmp_path / "spoke").exists, "the rank has not ended")
    until(lambda: not children(node.pid), "the rank is there")
    assert node.poll() is None  # the node waits for space to report how its rank ended
    node.send_signal(signal.SIGUSR1)
    node.communicate(timeout=100)
    assert node.returncode == 0
    assert (disk / "node-0.events").read_text() == ""


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
