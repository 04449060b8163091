"""Starting the node workers of an attempt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.until import until

from windlass.engines.local.attempt import LocalAttempt
from windlass.engines.local.backend import start_attempt
from windlass.engines.local.warm_pool import WarmPool
from windlass.worker.protocol import NodeSpec, RankSpec


@pytest.fixture
def wake() -> Iterator[int]:
    read, write = os.pipe()
    yield write
    os.close(read)
    os.close(write)


def test_start_that_fails_at_a_later_node_leaves_no_process(tmp_path: Path, wake: int) -> None:
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    specs = [
        NodeSpec(
            node, "", sys.executable, "/", {}, (RankSpec(node, 0, sleeps, {}),), 1.0, world_size=2, folder=str(tmp_path)
        )
        for node in range(2)
    ]
    (tmp_path / "node-1.out").mkdir()
    first, _ = LocalAttempt.of(tmp_path, specs).nodes
    open_before = {path.name for path in Path("/proc/self/fd").iterdir()}
    with pytest.raises(IsADirectoryError):
        start_attempt(tmp_path, specs, [], wake, WarmPool(tmp_path))
    assert {path.name for path in Path("/proc/self/fd").iterdir()} == open_before
    until(lambda: not first.lives(), "the worker of the first node has not ended", seconds=20.0)
