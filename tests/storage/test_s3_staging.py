"""Runs whose data is in an S3 server fetch it once for all runs, even if a supervisor is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from tests.helpers.machine import WINDLASS
from tests.helpers.until import until
from tests.servers.faulty import FaultProxy
from tests.storage.sets import IN_FLIGHT, Data, shape, write_set

pytestmark = pytest.mark.slow
SCRIPT = """
import os, pathlib
folder = pathlib.Path(os.environ["WINDLASS_DATA_SET"])
print("bytes", sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()))
"""


@pytest.fixture
def job(tmp_path: Path, data: Data, proxy: FaultProxy, bucket: str) -> Path:
    """Writes a job that reads a set of the bucket."""
    data.json("copy", str(write_set(tmp_path / "source", shape())), f"s3://{bucket}/set")
    proxy.reset()
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "read.py").write_text(SCRIPT)
    source = f"s3://{bucket}/set"
    text = json.dumps({"name": "read", "run": "read.py", "data": [{"name": "set", "source": source}]})
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def windlass(data: Data, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    keys = data.server.environ(data.endpoint)
    environ = {"PATH": os.environ["PATH"], "HOME": str(data.home), "WINDLASS_HOME": str(data.home), **keys}
    done = subprocess.run(
        [str(WINDLASS), *words], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def run_id(data: Data, job: Path) -> str:
    return str(json.loads(windlass(data, "run", str(job), "--detach", "-o", "json").stdout)["id"])


def test_runs_at_once_fetch_a_set_once_and_a_later_one_nothing(data: Data, proxy: FaultProxy, job: Path) -> None:
    for run in [run_id(data, job) for _ in range(3)]:
        assert f"bytes {shape().num_bytes}" in windlass(data, "logs", "-f", run).stdout
        assert json.loads(windlass(data, "status", run, "-o", "json").stdout)["phase"] == "succeeded"
    assert proxy.num_bytes == shape().num_bytes
    proxy.reset()
    assert f"bytes {shape().num_bytes}" in windlass(data, "logs", "-f", run_id(data, job)).stdout
    assert proxy.num_bytes == 0


def test_a_supervisor_that_is_killed_in_mid_fetch_costs_no_more_than_what_was_under_way(
    data: Data, proxy: FaultProxy, job: Path
) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(num_bytes: int) -> None:
        if num_bytes >= shape().num_bytes // 2 and not release.is_set():
            held.set()
            release.wait(240)

    proxy.passed = hold
    run = run_id(data, job)
    assert held.wait(240)
    status = json.loads(windlass(data, "status", run, "-o", "json").stdout)
    assert status["phase"] == "staging"
    os.kill(int((data.home / "runs" / run / "supervisor.pid").read_text().split()[0]), signal.SIGKILL)
    release.set()
    until(lambda: proxy.num_open == 0, "the connections of the fetch stay open")
    assert f"bytes {shape().num_bytes}" in windlass(data, "logs", "-f", run).stdout
    assert shape().num_bytes <= proxy.num_bytes <= shape().num_bytes + IN_FLIGHT["down"]
