"""Copies to and from an S3 server that are killed at any moment resume where they were."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.servers.faulty import FaultProxy
from tests.storage.sets import IN_FLIGHT, LARGE, Data, assert_equal, shape

pytestmark = pytest.mark.slow
KILLS = 2
"""Number of kills per copy."""
SEEDS = 10 if shape() is LARGE else 5
"""Number of seeds per direction."""


def killed(data: Data, proxy: FaultProxy, at: int, *words: str) -> None:
    """Runs a copy until the proxy has passed `at` bytes of data, and kills it at that moment."""
    pids: list[int] = []
    is_started, striking = threading.Event(), threading.Lock()

    def strike(num_bytes: int) -> None:
        if num_bytes < at:
            return
        is_started.wait()
        with striking:  # the proxy passes no more data before the kill
            if pids:
                os.kill(pids.pop(), signal.SIGKILL)

    proxy.passed = strike
    popen = data.start(*words)
    pids.append(popen.pid)
    is_started.set()
    _, err = popen.communicate()
    assert popen.returncode == -signal.SIGKILL, err
    until(lambda: proxy.num_open == 0, "the connections of a killed copy stay open")
    proxy.passed = lambda _num_bytes: None


def seeded(seed: str) -> list[float]:
    """Returns the moments of kills as fractions of all bytes."""
    rng = random.Random(seed)
    return sorted(rng.uniform(0.03, 0.97) for _ in range(KILLS))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_killed_copy_goes_on_and_moves_no_part_twice(
    data: Data, proxy: FaultProxy, source: Path, bucket: str, tmp_path: Path, direction: str, seed: int
) -> None:
    size, there, back = shape().num_bytes, f"s3://{bucket}/set", tmp_path / "back"
    words = ("copy", str(source), there) if direction == "up" else ("copy", there, str(back))
    if direction == "down":
        data.json("copy", str(source), there)
        proxy.reset()
    points = seeded(f"{direction} {seed}")
    for point in points:
        killed(data, proxy, int(point * size), *words)
    data.json(*words)
    allowed = 1.02 * size if shape() is LARGE and direction == "down" else size + KILLS * IN_FLIGHT[direction]
    assert size <= proxy.num_bytes <= allowed
    taken = [
        (one.path, *one.query["partNumber"]) for one in proxy.data if "partNumber" in one.query and one.status == 200
    ]
    assert len(taken) == len(set(taken)), "a part was taken twice"
    if direction == "up":
        data.json("copy", there, str(back))
    assert_equal(source, back)
    assert not [one for one in (back / ".windlass").rglob("*") if one.suffix == ".parts"]
    proxy.reset()
    assert data.json(*words)["copied_files"] == 0
    assert proxy.num_bytes == 0
    shutil.rmtree(back)
