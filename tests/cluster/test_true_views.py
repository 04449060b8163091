"""`status`, `ps` and `checkpoints` report the current state of a run without its supervisor and after its pods are
deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, ended, home, windlass
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.test_discovery import Elsewhere, elsewhere, kill_supervisor
from tests.cluster.test_exec_copy import WAY_SECONDS, submit, targets
from tests.helpers.until import until

from windlass.runs.record import Status
from windlass.train.checkpoint import files

__all__ = ["elsewhere", "ended", "home", "targets", "windlass"]

pytestmark = pytest.mark.timeout(900)
TIMEOUT = "--timeout=600s"

UNTIL_TOLD = """
import os, time
print("waits", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
"""
SAVES = """
import os
from pathlib import Path
folder = Path(os.environ["WINDLASS_CHECKPOINT_DIR"])
for step in (10, 20):
    place = folder / f"step-{{step:08d}}-a1aaaa"
    place.mkdir(parents=True)
    (place / "rank-0.safetensors").write_bytes(b"x" * 1000)
    (place / "rank-0.json").write_bytes(b"{{}}")
    (place / "manifest.json").write_bytes({manifests!r}[step])
(folder / "step-00000030-a1aaaa").mkdir()
"""


def manifest(step: int) -> bytes:
    """Returns the manifest of a checkpoint of one rank."""
    facts = {"rank-0.safetensors": {"bytes": 1000, "crc32": "0"}, "rank-0.json": {"bytes": 2, "crc32": "0"}}
    return files.seal(
        {
            "format": files.FORMAT,
            "step": step,
            "epoch": 0,
            "world_size": 1,
            "attempt": 1,
            "created_at": 1e9,
            "run_id": "any",
            "files": facts,
        }
    )


def answered(ask: Callable[[], Any]) -> Any:
    """Returns the first response with an answer from the cluster: a busy one may exceed the time limit of a command."""
    found: list[Any] = []

    def is_of_the_cluster() -> bool:
        found.append(ask())
        return "does not answer" not in (found[-1]["stale"] or "")

    until(is_of_the_cluster, lambda: found[-1]["stale"], WAY_SECONDS)
    return found[-1]


def test_first_status_without_a_supervisor_is_correct_and_a_success_outlives_its_job(
    windlass: Call,
    elsewhere: Elsewhere,
    targets: None,
    cluster: Cluster,
    namespace: str,
    home: Path,
    ended: Callable[..., Status],
) -> None:
    run = submit(windlass, UNTIL_TOLD, "--set", "kubernetes.via=job")
    until(lambda: "waits" in windlass("logs", run).out, "waits", WAY_SECONDS)
    kill_supervisor(home, run)
    pod = cluster.kubectl("get", "pods", "-n", namespace, "-l", f"windlass.dev/run={run}", "-o", "name").strip()
    cluster.kubectl("exec", "-n", namespace, pod, "--", "touch", "/tmp/go")
    cluster.kubectl("wait", "-n", namespace, f"job/{run}-1", "--for=condition=Complete", TIMEOUT)

    first = answered(lambda: windlass("status", run, "-o", "json").json)
    hold("status", first)
    assert first["phase"] == "succeeded"
    assert answered(lambda: windlass("ps", "-o", "json").json[0])["phase"] == "succeeded"

    assert ended(run, WAY_SECONDS).exit_code == 0
    # Set only now: the job's own TTL could remove it before any command has read the run.
    cluster.kubectl("patch", "job", f"{run}-1", "-n", namespace, "-p", '{"spec": {"ttlSecondsAfterFinished": 1}}')
    cluster.kubectl("wait", "-n", namespace, f"job/{run}-1", "--for=delete", TIMEOUT)
    [seen] = elsewhere("ps", "-o", "json").json
    assert (seen["phase"], seen["waits_for"]) == ("succeeded", "")
    assert elsewhere("rm", run).code == 0
    until(lambda: elsewhere("ps", "-o", "json").json == [], "not removed", WAY_SECONDS)


def test_checkpoints_in_a_claim_are_listed_after_the_pods_are_gone(
    windlass: Call, targets: None, bed: Bed, namespace: str, ended: Callable[..., Status]
) -> None:
    script = SAVES.format(manifests={step: manifest(step) for step in (10, 20)})
    run = submit(windlass, script, "--set", "kubernetes.results={size: 1GiB, storage_class: bed}")
    assert ended(run, WAY_SECONDS).exit_code == 0
    bed.kubectl("delete", "jobs,jobsets", "--all", "-n", namespace, "--wait=true", TIMEOUT)
    listed = windlass("checkpoints", run, "-o", "json")
    assert listed.code == 0, listed.err
    hold("checkpoints", listed.json)
    found = [(one["step"], one["bytes"], one["complete"]) for one in listed.json["checkpoints"]]
    assert found == [(30, 0, False), (20, 1002, True), (10, 1002, True)]
    refused = windlass("checkpoints", run, "verify")
    assert (refused.code, f"windlass cp {run}:checkpoints" in refused.err) == (2, True)
    bed.kubectl("delete", "pvc", run, "-n", namespace, "--wait=true", TIMEOUT)
    gone = windlass("checkpoints", run)
    assert (gone.code, f"claim {run} of {run} is gone" in gone.err) == (2, True)
    windlass("rm", "--force", run)
