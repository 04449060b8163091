"""A node whose ranks an external launcher requests, by a launcher that does what it should not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from windlass.worker import rank_proxy
from windlass.worker.protocol import LauncherSpec, NodeSpec, RankSpec

STARTS_ONE = """
import os, subprocess, sys
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]], env={**os.environ, "INDEX": "1"}))
"""


def test_a_rank_that_the_launcher_never_started_is_the_one_that_failed(tmp_path: Path) -> None:
    launch = LauncherSpec("launcher", (sys.executable, "-c", STARTS_ONE, rank_proxy.__file__), "INDEX", 5.0)
    ranks = tuple(RankSpec(number, number, (sys.executable, "-c", ""), {}) for number in range(2))
    spec = NodeSpec(0, "", sys.executable, "/", {}, ranks, 1.0, world_size=2, launch=launch, folder=str(tmp_path))
    spec.write()
    subprocess.run([sys.executable, "-m", "windlass.worker", spec.path("json")], check=False, timeout=100)
    *_, end = map(json.loads, Path(spec.path("events")).read_text().splitlines())
    [failure] = end["failures"]
    assert (failure["rank"], failure["of_launcher"]) == (0, True)
    assert failure["tail"].endswith("launcher ended with exit code 0 before all ranks were started")
