"""Spares on a real cluster replace a lost pod at once, and none remains when the run has ended."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import harness_on, log_of, opened, pods, set_up
from tests.engines.harness import Harness, Run

from windlass.errors import EngineError
from windlass.runs.phase import Phase

GO = "/windlass/work/go"
WAITS_FOR_SPARES = f"""import os, time
print("ready", flush=True)
while os.environ["WINDLASS_ATTEMPT"] == "1" or not os.path.exists({GO!r}):
    time.sleep(0.1)
print("rank", os.environ["WINDLASS_RANK"], "of attempt", os.environ["WINDLASS_ATTEMPT"], flush=True)
"""
WAIT_SECONDS = 600.0

pytestmark = pytest.mark.timeout(600)


def spared(cluster: Cluster, namespace: str, folder: Path) -> Harness:
    (folder / "code").mkdir()
    (folder / "code" / "waits.py").write_text(WAITS_FOR_SPARES)
    fields: dict[str, Any] = {"kubernetes": {"via": "job", "spares": 1}, "restarts": {"max": 1}}
    return harness_on(cluster, namespace, folder / "home", **fields)


def pod_names(cluster: Cluster, namespace: str, run: Run, attempt: int) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods(cluster, namespace, run, attempt)]


def in_pod(run: Run, node: int, *command: str) -> int:
    return run.harness.engine.exec(run.id, node, None, command, None, io.BytesIO(), io.BytesIO())


def waits(cluster: Cluster, namespace: str, spare: str) -> bool:
    """Returns whether a spare waits for an attempt; its pod cannot be asked before it has started."""
    try:
        return "waiting" in cluster.kubectl("exec", "-n", namespace, spare, "--", "ls", "/windlass/work")
    except subprocess.CalledProcessError:
        return False


def until_none_lives(run: Run) -> None:
    def is_so() -> bool:
        try:
            return not run.harness.engine.still_running(run.id)
        except EngineError:  # a busy cluster may not answer within the time limit of a command
            return False

    wait_for(is_so, "no pod to run", WAIT_SECONDS)


@pytest.mark.parametrize("where", ["cluster", pytest.param("machine", marks=pytest.mark.nightly)])
def test_spare_replaces_a_lost_pod(cluster: Cluster, namespace: str, tmp_path: Path, where: str) -> None:
    if where == "cluster":
        set_up(cluster, namespace)
    with opened(spared(cluster, namespace, tmp_path)) as harness:
        run = harness.start("waits.py", base=tmp_path / "code", nodes=2, procs_per_node=1).until_ready(2)
        first, lost, spare = pod_names(cluster, namespace, run, 1)
        wait_for(lambda: waits(cluster, namespace, spare), "the spare to wait", WAIT_SECONDS)
        cluster.kubectl("delete", "pod", "-n", namespace, lost, "--grace-period=0", "--force", "--wait=false")
        run.until(lambda run: run.text(attempt=2).count("ready\n") == 2)
        run.until(lambda run: pods(cluster, namespace, run, 2))
        # if the new spare does not wait yet, the end of the run deletes it
        [refill] = pod_names(cluster, namespace, run, 2)
        wait_for(lambda: waits(cluster, namespace, refill), "the spare of attempt 2 to wait", WAIT_SECONDS)
        assert [in_pod(run, node, "touch", GO) for node in range(2)] == [0, 0], "exec reaches the spare as its node"
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
        assert [run.raw(rank, attempt=2) for rank in range(2)] == [
            f"ready\nrank {rank} of attempt 2\n".encode() for rank in range(2)
        ]
        assert pod_names(cluster, namespace, run, 1) == [first, spare]
        [unused] = pods(cluster, namespace, run, 2)
        assert "[a] 2\n" not in log_of(cluster, namespace, unused)
        until_none_lives(run)
        harness.engine.delete(run.id)
        kinds = "jobs,pods,services,configmaps,secrets,leases"
        words = ("get", kinds, "-n", namespace, "-l", f"windlass.dev/run={run.id}", "-o", "name")
        wait_for(lambda: not cluster.kubectl(*words), "all objects to be gone", WAIT_SECONDS)
        harness.runs.clear()


@pytest.mark.nightly
def test_ended_run_leaves_no_spare(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The run may end before the spare waits."""
    set_up(cluster, namespace)
    with opened(spared(cluster, namespace, tmp_path)) as harness:
        ends = {
            '"WINDLASS_ATTEMPT": "2"': (harness.start("fail_until", "9"), Phase.FAILED),
            "ready": (harness.start("sleep", "1"), Phase.SUCCEEDED),
        }
        for run, phase in ends.values():
            assert run.wait().phase is phase, run.text()
        for printed, (run, _) in ends.items():
            until_none_lives(run)
            found = [pod for attempt in (1, 2) for pod in pods(cluster, namespace, run, attempt)]
            kept = [log_of(cluster, namespace, pod) for pod in found]
            assert any(printed in text for text in kept), f"what its ranks printed last is not kept: {kept}"
