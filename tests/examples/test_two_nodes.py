"""Example 07: the bytes that leave a node are those of the ring model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[2] / "examples" / "07-two-nodes" / "job.yaml"
# Above 1 by headers and acknowledgements: 3 % at full frames of 1500 bytes, less where the device sends large ones.
LEAST, MOST = 0.95, 1.25


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="networks are made by root")
@pytest.mark.parametrize("nodes", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_bytes_on_the_wire_are_those_of_the_ring_model(nodes: int, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("windlass")), "run", str(JOB), "--nodes", str(nodes)]
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = {int(node): float(megabytes) for node, megabytes in re.findall(r"node (\d+): sent ([\d.]+) MB", done.stdout)}
    model = 2 * (nodes - 1) / nodes * 10
    assert sorted(sent) == list(range(nodes))
    for megabytes in sent.values():
        assert LEAST <= megabytes / model <= MOST
    found = re.search(r"time: .* ratio ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) >= LEAST  # nothing is faster than its link; how much slower is the machine's affair
