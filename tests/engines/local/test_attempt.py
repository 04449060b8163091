"""The node workers of an attempt on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from windlass.engines.local.attempt import LocalAttempt
from windlass.worker.protocol import LauncherSpec, NodeSpec, RankSpec

BANNER = "[host:12] a message of the launcher\n"
CRASH = "Traceback (most recent call last):\nMemoryError"


@pytest.mark.parametrize(
    ("begun", "output", "words"),
    [(True, BANNER, ""), (True, BANNER + CRASH, CRASH), (False, "exec format error\n", "exec format error")],
)
def test_last_words_of_a_node_are_not_those_of_its_launcher(
    tmp_path: Path, begun: bool, output: str, words: str
) -> None:
    launch = LauncherSpec("mpirun", ("mpirun",), "OMPI_COMM_WORLD_RANK", 5.0)
    spec = NodeSpec(0, "", sys.executable, "/", {}, (RankSpec(0, 0, ("true",), {}),), 1.0, launch=launch)
    [node] = LocalAttempt.of(tmp_path, [spec]).nodes
    node.path("out").write_text(output)
    node.begun = begun
    assert node.last_words() == words
