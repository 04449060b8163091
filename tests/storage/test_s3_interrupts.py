"""A copy from an S3 server shows a progress bar on a terminal, and resumes after Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pexpect
import pytest
from tests.helpers.machine import WINDLASS
from tests.helpers.until import until
from tests.servers.faulty import PASS, Fault, FaultProxy, Request
from tests.storage.sets import QUICK, Data, assert_equal, write_set

pytestmark = pytest.mark.slow


class Held:
    """Blocks requests for data after some have passed, until released."""

    def __init__(self, proxy: FaultProxy, num_passed: int) -> None:
        self.go = threading.Event()
        self._left = threading.Semaphore(num_passed)
        proxy.fault = self.decide

    def decide(self, request: Request) -> Fault:
        if request.is_data and not self._left.acquire(blocking=False):
            self.go.wait(250)
        return PASS


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_set(tmp_path / "source", QUICK)


def test_a_terminal_shows_a_bar_with_files_bytes_rate_and_time_left(
    data: Data, proxy: FaultProxy, source: Path, bucket: str
) -> None:
    held = Held(proxy, num_passed=6)
    environ = {**data.environ, "TERM": "xterm-256color"}
    environ.pop("NO_COLOR")
    words = ["data", "copy", str(source), f"s3://{bucket}/set"]
    child = pexpect.spawn(str(WINDLASS), words, env=environ, dimensions=(30, 120), encoding="utf-8", timeout=250)
    try:
        child.expect(r"copy .*[╸━]")
        child.expect(r"\d+(\.\d+)?/74\.4 MiB")
        child.expect(r"[\d?.]+ ?.?B?/?s?.*\d+ of 62 files")
        held.go.set()
        child.expect("62 files copied, 74 MiB in ")
        child.expect(pexpect.EOF)
        child.wait()  # the child closes its terminal before it exits, and `close` would end it
    finally:
        held.go.set()
        child.close(force=True)
    assert child.exitstatus == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_copy_says_how_to_go_on_and_does(
    data: Data, proxy: FaultProxy, source: Path, bucket: str, tmp_path: Path, number: int, code: int
) -> None:
    there, back = f"s3://{bucket}/set", tmp_path / "back"
    data.json("copy", str(source), there)
    proxy.reset()
    held = Held(proxy, num_passed := 30)
    popen = data.start("copy", there, str(back))
    # All files that passed are complete, and only blocked requests are in progress. The passed requests need not be the
    # first ones, because a separate thread decides on each.
    until(lambda: sum(one.down > 0 for one in proxy.data) == num_passed < len(proxy.data))
    os.kill(popen.pid, number)
    _, err = popen.communicate()
    held.go.set()
    assert popen.returncode == code, err
    assert "interrupted: " in err
    assert "of 62 files" in err
    assert err.endswith("run the same command again to continue\n")
    assert "Traceback" not in err
    until(lambda: proxy.num_open == 0)
    proxy.reset()
    again = data.json("copy", there, str(back))
    assert again["refused"] == []
    assert proxy.num_bytes < QUICK.num_bytes
    assert_equal(source, back)
