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

from windlass.worker.event_log import EventLog
from windlass.worker.output_events import OutputEvents
from windlass.worker.protocol import NodeEnded, NodeSpec, NodeWarning, RankSpec
from windlass.worker.ranks import Ranks
from windlass.worker.reserve import Reserve

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


@pytest.mark.parametrize("has_space", [False, True])
def test_points_of_metrics_are_lost_at_the_end_if_the_disk_is_full(tmp_path: Path, *, has_space: bool) -> None:
    class Disk(Reserve):
        def has_space(self) -> bool:
            return has_space

    rank = RankSpec(0, 0, ("true",), {})
    spec = NodeSpec(0, "", sys.executable, str(tmp_path), {}, (rank,), 1.0, folder=str(tmp_path))
    events = EventLog(spec.path("events"), Disk(str(tmp_path / "reserve"), 1, is_shared=False), None, None)
    output = OutputEvents(spec, events, Ranks(1.0), are_logs_read=True)
    events.add(NodeWarning(1.0, "waits"))
    for name in range(30):
        for step in range(200):  # more than one event
            output.metrics.add(0, "report", f"metric/{name}", step, 1.0, 0.5)
    output.report_metrics(at_end=True)
    events.add(NodeEnded(2.0, (), "itself"))  # urgent: written with all that waits
    kinds = [json.loads(line)["kind"] for line in Path(spec.path("events")).read_text().splitlines()]
    assert (kinds[0], kinds[-1]) == ("warning", "end")
    assert kinds.count("metrics") > 1 if has_space else len(kinds) == 2


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
