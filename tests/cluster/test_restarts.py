"""Restarts on a real cluster use the same pods if they are healthy, and new ones otherwise."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime
from pathlib import Path

import pytest
from tests.cluster.bed.cluster import Cluster
from tests.cluster.harnesses import harness_on, opened, pods
from tests.engines.harness import Run
from tests.helpers.until import until

from windlass.engines.kubernetes.objects.pod_assignment import STAY_SECONDS
from windlass.runs.phase import Phase
from windlass.supervise.process import supervisor_pid

SCRIPT = """
import os, socket, time
attempt, rank = os.environ["WINDLASS_ATTEMPT"], os.environ["WINDLASS_RANK"]
print(f"attempt {attempt} of rank {rank}", flush=True)
if attempt in os.environ["BREAKS"]:
    place = (os.environ["WINDLASS_MASTER_ADDR"] if rank == "1" else "", 23000 + int(attempt))
    if rank == "0":
        listener = socket.create_server(place)
    while rank == "1":  # pods start when they can, and the pod of a rank that has not begun is not reused
        try:
            socket.create_connection(place, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            raise RuntimeError(f"broken {attempt}")
while attempt in os.environ["BREAKS"] + os.environ["WAITS"]:
    time.sleep(0.1)
"""
WAIT_SECONDS = 600.0

pytestmark = pytest.mark.timeout(900)


def script(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "script.py").write_text(SCRIPT)
    return tmp_path / "job"


def names(cluster: Cluster, namespace: str, run: Run) -> set[str]:
    """Returns the names of the run's existing pods."""
    words = ("-l", f"windlass.dev/run={run.id}", "-o", "jsonpath={.items[*].metadata.name}")
    return set(cluster.kubectl("get", "pods", "-n", namespace, *words).split())


@pytest.mark.parametrize(
    ("via", "launcher"),
    [
        ("job", "plain"),
        pytest.param("jobset", "plain", marks=pytest.mark.nightly),
        pytest.param("job", "torchrun", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_that_fails_is_restarted_with_all_others_in_the_same_pods(
    cluster: Cluster, namespace: str, tmp_path: Path, via: str, launcher: str
) -> None:
    with opened(
        harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": via}, restarts={"max": 3})
    ) as harness:
        fields = {"nodes": 2, "launcher": launcher, "env": {"BREAKS": "12", "WAITS": ""}}
        run = harness.start("script.py", base=script(tmp_path), **fields)
        run.until(lambda run: "broken 1" in run.text())
        before = names(cluster, namespace, run)
        status = run.wait()
        assert status.phase is Phase.SUCCEEDED, run.text()
        assert len(status.attempts) == 3
        assert names(cluster, namespace, run) == before
        for attempt in (1, 2, 3):
            for rank in (0, 1):
                said = [line.text for line in run.lines(attempt=attempt, ranks=[rank])]
                assert said.count(f"attempt {attempt} of rank {rank}") == 1, said


def test_lost_pod_causes_new_pods_for_all_nodes(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts={"max": 3})) as harness:
        run = harness.start(
            "script.py", base=script(tmp_path), nodes=2, launcher="plain", env={"BREAKS": "1", "WAITS": "2"}
        )
        run.until(lambda run: "attempt 2 of rank 1" in run.text() and "attempt 2 of rank 0" in run.text())
        before = names(cluster, namespace, run)
        lost = pods(cluster, namespace, run, 1)[0]["metadata"]["name"]
        cluster.kubectl("delete", "pod", lost, "-n", namespace, "--grace-period=0", "--force")
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        # The pods of attempt 1 are deleted, and end with a delay on a busy node.
        until(lambda: not names(cluster, namespace, run) & before, "pods of attempt 1 are left", WAIT_SECONDS)
        assert [one.reason for one in run.status.attempts][:1] == ["failure"]


SAVES = """
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("attempt", os.environ["WINDLASS_ATTEMPT"], flush=True)
while os.environ["WINDLASS_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


def test_an_evicted_pod_ends_once_it_has_saved_and_uses_up_no_restart(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    script(tmp_path).joinpath("script.py").write_text(SAVES)
    again = {"max": 1, "on": ["preemption"]}
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts=again)) as harness:
        run = harness.start("script.py", base=tmp_path / "job", nodes=2, launcher="plain", grace="300s")
        run.until(lambda run: run.text().count("attempt 1") == 2)
        name = pods(cluster, namespace, run, 1)[1]["metadata"]["name"]
        about = {"kind": "Pod", "name": name, "namespace": namespace}
        by_karpenter = {"reason": "Evicted", "message": "Evicted pod: Drifted", "source": {"component": "karpenter"}}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "drifted"}, "involvedObject": about}
        cluster.apply({**event, **by_karpenter}, namespace=namespace)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        status = run.wait()  # a pod that waited for another attempt would be killed after five minutes
        assert (status.phase, status.restarts_left) == (Phase.SUCCEEDED, 1), run.text()
        assert [one.reason for one in status.attempts] == ["preemption", None]
        assert run.text().count("saved") == 2
        messages = [str(event.data["message"]) for event in run.events if event.kind == "warning"]
        assert [one for one in messages if "Evict" in one] == [
            f"pod {name}: EvictionByEvictionAPI: by Karpenter: Drifted"
        ]


def test_failed_pods_end_if_no_restart_follows(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts={"max": 1})) as harness:
        run = harness.start(
            "script.py", base=script(tmp_path), nodes=2, launcher="plain", env={"BREAKS": "12", "WAITS": ""}
        )
        status = run.wait()
        assert status.phase is Phase.FAILED
        until(lambda: all(end is not None for end in ends(cluster, namespace, run)), "pods run on", WAIT_SECONDS)
        failed_at = status.attempts[-1].ended_at
        assert failed_at is not None
        found = [end - failed_at for end in ends(cluster, namespace, run) if end is not None]
        assert found, "the pods of a run that has failed are kept"
        assert max(found) < STAY_SECONDS - 20, "a pod has waited for an attempt, as long as it does"


def ends(cluster: Cluster, namespace: str, run: Run) -> list[float | None]:
    """Returns when the pods of attempt 1 ended, in Unix seconds; None for one that has not."""
    found = [
        one["state"].get("terminated", {}).get("finishedAt")
        for pod in pods(cluster, namespace, run, 1)
        for one in pod["status"].get("containerStatuses", [{"state": {}}])
    ]
    return [None if at is None else datetime.fromisoformat(at).timestamp() for at in found]


def test_new_supervisor_adopts_an_attempt_in_reused_pods(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts={"max": 3})) as harness:
        run = harness.start(
            "script.py", base=script(tmp_path), nodes=2, launcher="plain", env={"BREAKS": "1", "WAITS": "2"}
        )
        run.until(lambda run: "attempt 2 of rank 1" in run.text() and "attempt 2 of rank 0" in run.text())
        supervisor = supervisor_pid(run.dir)
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        run.until(lambda run: run.status and supervisor_pid(run.dir) not in (None, supervisor))
        harness.engine.stop(run.id)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.STOPPED, 2)
        for rank in (0, 1):
            assert [line.text for line in run.lines(attempt=2, ranks=[rank])] == [f"attempt 2 of rank {rank}"]


def test_the_ranks_of_every_attempt_in_a_pod_are_forks_of_its_first_process(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    job = script(tmp_path)
    (job / "script.py").write_text("import torch\n" + SCRIPT)
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts={"max": 3})) as harness:
        run = harness.start("script.py", base=job, procs_per_node=2, env={"BREAKS": "12", "WAITS": ""})
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        events = [
            [json.loads(line) for line in (run.dir / f"attempt-{number}" / "node-0.events").read_text().splitlines()]
            for number in (1, 2, 3)
        ]
        assert [[one["start"] for one in told if one["kind"] == "node"] for told in events] == [
            ["warm"],
            ["warm"],
            ["warm"],
        ]
