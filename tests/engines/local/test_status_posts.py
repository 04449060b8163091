"""Progress that a script posts, as some libraries do on their own, is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.engines.local.warm_pool import WarmPool
from windlass.runs.store import Store

POSTING = """
import json, os, sys, urllib.request

def post(percent, seconds, **metrics):
    metrics = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    status = {"progressPercentage": percent, "estimatedRemainingSeconds": seconds, "metrics": metrics}
    token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read()
    request = urllib.request.Request(
        os.environ["KUBEFLOW_TRAINER_SERVER_URL"], json.dumps({"trainerStatus": status}).encode(),
        {"Authorization": f"Bearer {token}"}, method="POST",
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    return token

if os.environ["RANK"] == "1":
    post(0, 60, total_steps=40)
    token = post(30, 42, current_step=12, total_steps=40, loss=0.25)
    open(os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "token"), "w").write(token)
"""


def finish(folder: Path, script: str, job: str, **environ: str) -> dict[str, Any]:
    """Returns the progress of a run of `script` with additional lines in its `job` file; the record is in
    `folder/home`.
    """
    (folder / "train.py").write_text(script)
    (folder / "job.yaml").write_text(f"name: posts\nrun: train.py\n{job}")
    windlass = [sys.executable, "-m", "windlass"]
    names = ("http_proxy", "HTTP_PROXY")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= {"WINDLASS_HOME": str(folder / "home"), **environ}
    done = subprocess.run(
        [*windlass, "run", "job.yaml"], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    WarmPool(folder / "home").stop()
    with Store(folder / "home") as store:
        [status] = store.statuses()
        return status.progress.to_json()


WAYS = {
    "cold": "procs_per_node: 2\nstart: cold\n",
    "warm": "procs_per_node: 2\nwarm: [json]\n",
    "second-node": "nodes: 2\nstart: cold\n",
}


@pytest.mark.parametrize("way", WAYS)
def test_posted_progress_of_rank_is_progress_of_run(tmp_path: Path, way: str) -> None:
    progress = finish(tmp_path, POSTING, WAYS[way])
    assert progress.items() >= {"rank": 1, "step": 12, "total": 40, "loss": 0.25, "eta_seconds": 42.0}.items()
    hold_to_secrecy(tmp_path)


def hold_to_secrecy(tmp_path: Path) -> None:
    """Asserts that the token is in no plan, log or record, and is invalid after the run."""
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    (written,) = [path for path in files if path.parent.name == "output"]
    token = written.read_bytes()
    assert len(token) == 64
    assert [path for path in files if token in path.read_bytes()] == [written]
    assert not [path for path in files if path.name.endswith(".token")]


def test_script_with_its_own_status_server_keeps_its_address(tmp_path: Path) -> None:
    script = """
import os
assert os.environ["KUBEFLOW_TRAINER_SERVER_URL"] == "https://example.com/status"
assert "KUBEFLOW_TRAINER_SERVER_TOKEN" not in os.environ
"""
    finish(tmp_path, script, "", KUBEFLOW_TRAINER_SERVER_URL="https://example.com/status")


def test_job_may_disable_status_server(tmp_path: Path) -> None:
    script = "import os\nassert 'KUBEFLOW_TRAINER_SERVER_URL' not in os.environ\n"
    finish(tmp_path, script, 'env: {DISABLE_KUBEFLOW_INTEGRATION: "TRUE"}\n')
