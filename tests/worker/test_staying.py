"""The process of a pod, run here for real: it stays after a failure, plays the next attempt, and goes when told."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.engines.kubernetes.staying import SIGNALLING
from windlass.worker import pod, staying

SCRIPT = """
import os, sys, time
print("attempt", os.environ["WINDLASS_ATTEMPT"], flush=True)
how = os.environ["HOW"]
time.sleep(600 if how == "sleeps" else 0)
sys.exit(how == "fails")
"""


class Pod:
    """The process of a pod with one rank, and its folder."""

    def __init__(self, work: Path, how: str, stay_seconds: float = 600.0) -> None:
        self.work = work
        (work / "script.py").write_text(SCRIPT)
        nodes = work / "nodes.json.gz"
        nodes.write_bytes(self.spec(1, how, stay_seconds))
        self.log = work / "log"
        words = [sys.executable, "-I", "-S", pod.__file__, str(work / "attempt"), str(nodes)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]})

    def spec(self, attempt: int, how: str, stay_seconds: float = 600.0) -> bytes:
        env = {
            "MASTER_ADDR": "127.0.0.1", "WINDLASS_ATTEMPT": str(attempt), "HOW": how,
            "WINDLASS_OUTPUT_DIR": str(self.work / "out"), "WINDLASS_CHECKPOINT_DIR": str(self.work / "checkpoints"),
        }  # fmt: skip
        rank = {"rank": 0, "local_rank": 0, "argv": [sys.executable, str(self.work / "script.py")], "env": {}}
        node: dict[str, Any] = {
            "node": 0, "worker_python": sys.executable, "cwd": str(self.work), "env": {}, "ranks": [rank],
            "grace_seconds": 5.0, "progress": None, "stay_seconds": stay_seconds,
        }  # fmt: skip
        return gzip.compress(json.dumps({"attempt": attempt, "common": {"env": env}, "nodes": {"0": node}}).encode())

    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        give_up = time.monotonic() + 60
        while text not in self.text():
            assert self.process.poll() is None or text in self.text(), self.text()
            assert time.monotonic() < give_up, f"no {text!r} in {self.text()}"
            time.sleep(0.02)

    def wait(self) -> int:
        return self.process.wait(60)

    def tell(self, *words: str) -> int:
        """Run `staying.py` beside it, as in its container."""
        return subprocess.run([sys.executable, "-I", "-S", staying.__file__, str(self.work), *words]).returncode

    def order(self, attempt: int, how: str) -> int:
        return self.tell("order", base64.b64encode(self.spec(attempt, how)).decode())

    def signal_as_keeper(self, attempt: int) -> None:
        """As it is done in a pod, whose first process this one is not."""
        program = SIGNALLING.replace("os.kill(1,", f"os.kill({self.process.pid},")
        subprocess.run(
            [sys.executable, "-c", program, str(self.work), str(attempt), str(int(signal.SIGTERM))], check=True
        )


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    made: list[Pod] = []
    yield made
    for one in made:
        one.process.kill()
        one.process.wait()


def test_a_pod_whose_rank_failed_plays_the_next_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    assert one.order(2, "fails") == staying.HEARD
    one.wait_for("[a] 2")
    one.wait_for("[0] attempt 2")
    assert one.order(3, "succeeds") == staying.HEARD  # waits until it stays again
    assert one.wait() == 0
    assert "[0] attempt 3" in one.text()


def test_a_pod_that_succeeded_does_not_stay(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "succeeds"))
    assert one.wait() == 0
    assert "[a]" not in one.text()


def test_without_an_order_it_ends_with_the_code_of_its_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails", stay_seconds=0.2))
    assert one.wait() == 1
    assert "[a] over" in one.text()


def test_a_pod_of_a_run_that_has_ended_is_told_to_go(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    while not (tmp_path / staying.STAYS).exists():
        time.sleep(0.02)
    assert staying.leave(str(tmp_path), one.process.pid) == staying.HEARD
    assert one.wait() == 1


def test_one_that_plays_is_not_told_to_go(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    assert staying.leave(str(tmp_path), one.process.pid) == staying.NOT_HEARD
    assert one.process.poll() is None


def test_it_stays_when_its_keeper_ends_the_ranks(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    one.signal_as_keeper(1)
    one.wait_for("[a] over")
    assert one.order(2, "succeeds") == staying.HEARD
    assert one.wait() == 0


def test_it_goes_when_its_machine_does(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 1
    assert "[a] over" not in one.text()


def test_a_signal_that_comes_late_is_not_for_the_next_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    one.signal_as_keeper(1)  # the keeper did not know yet that the node had ended
    assert one.order(2, "sleeps") == staying.HEARD
    one.wait_for("[0] attempt 2")
    one.signal_as_keeper(1)
    time.sleep(0.2)
    assert one.process.poll() is None
    one.signal_as_keeper(2)
    while one.text().count("[a] over") < 2:
        assert one.process.poll() is None, one.text()
        time.sleep(0.02)
