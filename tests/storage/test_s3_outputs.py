"""Outputs of runs are in the S3 server, verified, once a run has ended, even after a kill."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.servers.faulty import FaultProxy
from tests.storage.sets import IN_FLIGHT, Data, shape, write_set
from tests.storage.test_s3_staging import run_id, windlass

pytestmark = pytest.mark.slow
SCRIPT = """
import os, shutil
shutil.copytree(os.environ["SET"], os.environ["WINDLASS_OUTPUT_DIR"], copy_function=os.link, dirs_exist_ok=True)
"""


@pytest.fixture
def job(tmp_path: Path, bucket: str) -> Path:
    """Writes a job that creates a set."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "write.py").write_text(SCRIPT)
    made = write_set(tmp_path / "set", shape())
    job = {"name": "write", "run": "write.py", "env": {"SET": str(made)}, "outputs": f"s3://{bucket}/runs"}
    (folder / "job.yaml").write_text(json.dumps(job))
    return folder / "job.yaml"


def assert_uploaded(data: Data, bucket: str, run: str) -> None:
    """Asserts that the run succeeded and its store contains its outputs, byte for byte."""
    status = json.loads(windlass(data, "status", run, "-o", "json").stdout)
    to = f"s3://{bucket}/runs/{run}/"
    assert (status["phase"], status["outputs"]["destination"]) == ("succeeded", to)
    verified = data.json("verify", to)
    assert (verified["ok"], verified["digest"]) == (True, status["outputs"]["digest"])
    assert status["outputs"]["bytes"] == verified["bytes"] == shape().num_bytes


def test_outputs_are_in_the_store_once_a_run_has_ended(data: Data, job: Path, bucket: str) -> None:
    run = run_id(data, job)
    windlass(data, "logs", "-f", run)
    assert_uploaded(data, bucket, run)


def test_missing_bucket_is_reported_before_training(data: Data, job: Path) -> None:
    fields = json.loads(job.read_text())
    job.write_text(json.dumps({**fields, "outputs": "s3://nothing/runs"}))
    done = windlass(data, "run", str(job), code=2)
    assert done.stderr == "error: write: outputs: s3://nothing/runs/: there is no bucket nothing (check its name)\n"
    assert json.loads(windlass(data, "ps", "-a", "-o", "json").stdout) == []


def test_a_supervisor_that_is_killed_in_mid_upload_costs_no_more_than_what_was_under_way(
    data: Data, proxy: FaultProxy, job: Path, bucket: str
) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(num_bytes: int) -> None:
        if num_bytes >= shape().num_bytes * 7 // 8 and not release.is_set():
            held.set()
            release.wait(240)

    proxy.passed = hold
    run = run_id(data, job)
    assert held.wait(240)
    assert json.loads(windlass(data, "status", run, "-o", "json").stdout)["phase"] == "uploading"
    os.kill(int((data.home / "runs" / run / "supervisor.pid").read_text().split()[0]), signal.SIGKILL)
    release.set()
    until(lambda: proxy.num_open == 0, "the connections of the upload stay open")
    windlass(data, "logs", "-f", run)
    assert shape().num_bytes <= proxy.num_bytes <= shape().num_bytes + IN_FLIGHT["up"]
    assert_uploaded(data, bucket, run)
