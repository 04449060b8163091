"""Runs with a supervisor in their cluster need no user's machine, and all machines report the same about them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, home, windlass
from tests.cluster.bed.cluster import Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import harness_on, let_go, log_of, opened, pods, set_up, target_on
from tests.cluster.test_exec_copy import submit, write_targets
from tests.engines.harness import Harness, Run

from windlass.diagnose.diagnose import diagnose
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects.find_pod_specs import pod_specs
from windlass.engines.kubernetes.supervisor import runs
from windlass.engines.kubernetes.target import ClusterRuns
from windlass.plan.plan import Plan
from windlass.runs.context import Context
from windlass.runs.events import Event
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store

__all__ = ["home", "windlass"]

NUM_KILLS = 2
"""Number of kills; the cluster doubles its pause before each further restart."""
HANG_SECONDS = 30
STEADY = f"""import time
for step in range({HANG_SECONDS} * 3 // 2):
    print("step", step, flush=True)
    time.sleep(1)
"""
TWICE = """import os, sys, time
from pathlib import Path

def wait_for(name):
    while not Path(os.environ["WINDLASS_OUTPUT_DIR"], name).exists():
        time.sleep(0.1)

if os.environ["WINDLASS_ATTEMPT"] == "1":
    print("ready", flush=True)
    wait_for("fail")
    sys.exit(3)
print("again", flush=True)
wait_for("go")
"""
LOSES_A_POD = """import os, sys, time
from pathlib import Path

print("ready", flush=True)
while os.environ["WINDLASS_ATTEMPT"] == "1":
    time.sleep(0.1)
while "waits" in sys.argv and not Path(os.environ["WINDLASS_OUTPUT_DIR"], "go").exists():
    time.sleep(0.1)
"""
"""Script whose first attempt ends only when it has lost a pod."""
WAIT_SECONDS = 600.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def inside(cluster: Cluster, namespace: str) -> str:
    """Namespace with supervisors in the cluster."""
    set_up(cluster, namespace)
    return namespace


class Machine:
    """Another machine with a separate home and the same target."""

    def __init__(self, cluster: Cluster, namespace: str, home: Path) -> None:
        self.store = Store(home)
        self._target = target_on(cluster, namespace)
        self._context = Context({"KUBECONFIG": cluster.kubeconfig}, home)

    def find(self, run_id: str) -> KubernetesEngine:
        """Returns the engine that has the run's record on this machine."""
        found, there = ClusterRuns(self.store, self._target, self._context).find(run_id)
        assert there == run_id
        assert isinstance(found, KubernetesEngine), "the record was not found in the cluster"
        return found


@pytest.fixture
def elsewhere(cluster: Cluster, inside: str, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(cluster, inside, tmp_path / "elsewhere")
    yield machine
    machine.store.close()


def supervisors(cluster: Cluster, namespace: str, run_id: str) -> list[dict[str, Any]]:
    """Returns the running pods of the run's supervisor that are not being deleted."""
    return [pod for pod in _running(cluster, namespace, run_id) if not pod["metadata"].get("deletionTimestamp")]


def _running(cluster: Cluster, namespace: str, run_id: str) -> list[dict[str, Any]]:
    words = ("-l", f"windlass.dev/run={run_id},app.kubernetes.io/component=supervisor", "-o", "json")
    found = json.loads(cluster.kubectl("get", "pods", "-n", namespace, *words))["items"]
    return [pod for pod in found if pod["status"].get("phase") == "Running"]


def kill_supervisor(cluster: Cluster, namespace: str, run_id: str) -> None:
    """Kills the pod of a supervisor, and waits for the next one."""
    [old] = wait_for(lambda: supervisors(cluster, namespace, run_id), "a supervisor", WAIT_SECONDS)
    name = old["metadata"]["name"]
    cluster.kubectl("delete", "pod", "-n", namespace, name, "--grace-period=0", "--force")
    wait_for(
        lambda: [pod for pod in supervisors(cluster, namespace, run_id) if pod["metadata"]["name"] != name],
        "the next supervisor",
        WAIT_SECONDS,
    )


def kill_container(cluster: Cluster, namespace: str, run_id: str) -> None:
    """Kills the processes of a supervisor, whose container is restarted in its pod."""
    mine = f"WINDLASS_RUN={run_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            if mine in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)

    def is_restarted() -> bool:
        containers = (pod["status"]["containerStatuses"] for pod in supervisors(cluster, namespace, run_id))
        return any(one["restartCount"] and "running" in one["state"] for [one] in containers)

    wait_for(is_restarted, "the supervisor's container to run again", WAIT_SECONDS)


def suspend(cluster: Cluster, namespace: str, run_id: str, *, is_suspended: bool) -> None:
    """Suspends or resumes the Job of the run's supervisor."""
    patch = json.dumps({"spec": {"suspend": is_suspended}})
    cluster.kubectl("patch", "job", f"{run_id}-supervisor", "-n", namespace, "-p", patch)
    if is_suspended:
        wait_for(lambda: not _running(cluster, namespace, run_id), "the supervisor to end", WAIT_SECONDS)


def events(status: Status, store: Store) -> list[Event]:
    """Returns the events of a run, which must be complete and without duplicates."""
    found = store.events(status.id)
    assert [event.seq for event in found] == list(range(1, status.last_seq + 1))
    return found


def kinds(found: list[Event], *wanted: str) -> list[str]:
    return [event.kind for event in found if event.kind in wanted]


def left_over(cluster: Cluster, namespace: str, run_id: str) -> str:
    kinds = "jobs,jobsets,pods,services,configmaps,secrets,leases"
    return cluster.kubectl("get", kinds, "-n", namespace, "-l", f"windlass.dev/run={run_id}", "-o", "name")


def test_killed_supervisors_lose_no_event_and_no_log_line(
    cluster: Cluster, inside: str, elsewhere: Machine, tmp_path: Path
) -> None:
    with opened(harness_on(cluster, inside, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        for _ in range(NUM_KILLS):
            kill_supervisor(cluster, inside, run.id)
        kill_container(cluster, inside, run.id)
        let_go(cluster, inside, run)
        status = run.wait()
        assert (status.phase, len(status.attempts), status.exit_code) == (Phase.SUCCEEDED, 1, 0), run.text()
        assert Path(status.output_dir, "go").exists(), "its outputs were not fetched"
        found = events(status, harness.store)
        assert kinds(found, "attempt", "lost-node", "cause", "end") == ["attempt", "end"]
        assert kinds(found, "adopted")
        there = elsewhere.find(run.id).status(run.id)
        assert replace(there, output_dir=status.output_dir) == status  # only one machine has the outputs
        assert elsewhere.store.events(run.id) == found


def test_ranks_that_fail_while_the_cluster_runs_no_supervisor_are_started_again_later(
    cluster: Cluster, inside: str, tmp_path: Path
) -> None:
    """They restart in the waiting pods; a supervisor that is killed then finds the attempt in the pods of the first."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "twice.py").write_text(TWICE)
    with opened(
        harness_on(cluster, inside, tmp_path / "home", kubernetes={"via": "job"}, restarts={"max": 1})
    ) as harness:
        run = harness.start("twice.py", base=tmp_path / "code", nodes=2, procs_per_node=1).until_ready(2)
        suspend(cluster, inside, run.id, is_suspended=True)
        let_go(cluster, inside, run, name="fail")
        wait_for(lambda: _waits(cluster, inside, run), "the pods to wait", WAIT_SECONDS)
        suspend(cluster, inside, run.id, is_suspended=False)
        run.until(lambda run: run.text().count("again\n") == 2)
        kill_supervisor(cluster, inside, run.id)
        let_go(cluster, inside, run)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
        found = events(status, harness.store)
        assert [event.data for event in found if event.kind == "pods"] == [{"attempt": 2, "made_for": 1}]
        assert kinds(found, "attempt", "lost-node", "cause", "end") == ["attempt", "cause", "attempt", "end"]


def _waits(cluster: Cluster, namespace: str, run: Run) -> bool:
    """Returns whether the pods of attempt 1 wait for the next one."""
    return all("[a] over" in log_of(cluster, namespace, pod) for pod in pods(cluster, namespace, run, 1))


def test_missing_supervisor_is_created_by_the_next_command(cluster: Cluster, inside: str, tmp_path: Path) -> None:
    """A submission may be killed after it created the record and before the supervisor's Job."""
    with opened(harness_on(cluster, inside, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        cluster.kubectl("delete", "job", "-n", inside, f"{run.id}-supervisor", "--wait")
        let_go(cluster, inside, run)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()


def test_pods_that_a_sidecar_keeps_running_end_with_their_run(cluster: Cluster, inside: str, tmp_path: Path) -> None:
    """A webhook may inject a sidecar that does not end by itself; here it is in the plan."""
    with opened(harness_on(cluster, inside, tmp_path / "home")) as harness:
        made = json.loads(harness.plan("lines", "3", "1").to_text())
        objects = [one["request"] for one in made["steps"] if one["kind"] in ("attempt", "supervisor")]
        for spec in pod_specs(objects):
            [ours] = spec["containers"]
            ends = "import signal, sys; signal.signal(15, lambda *_: sys.exit()); signal.pause()"
            command = [cluster.python, "-c", ends]
            spec["containers"].append({**ours, "name": "sidecar", "command": command, "volumeMounts": []})
        plan = Plan.from_json(made)
        run = Run(harness, plan.run_id)
        harness.engine.submit(plan)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        wait_for(lambda: pods(cluster, inside, run, 1) == [], "its pods to be deleted", WAIT_SECONDS)
        its = ("get", "pods", "-n", inside, "-l", f"windlass.dev/run={run.id}", "-o", "name")
        wait_for(lambda: cluster.kubectl(*its) == "", "the supervisor's pod to end", WAIT_SECONDS)

        def is_noted() -> bool:  # the supervisor notes it after the end, which `wait` awaits
            harness.engine.status(run.id)
            return any("sidecar ran on beside the ranks" in str(event.data.get("message")) for event in run.events)

        wait_for(is_noted, "the note on the sidecar", WAIT_SECONDS)


@pytest.mark.parametrize("is_supervised", [True, False], ids=["supervised", "unsupervised"])
def test_a_run_is_stopped_and_removed_from_any_machine(
    cluster: Cluster, inside: str, elsewhere: Machine, tmp_path: Path, is_supervised: bool
) -> None:
    with opened(harness_on(cluster, inside, tmp_path / "home")) as harness:
        run = harness.start("sleep", "600").until_ready()
        if not is_supervised:
            suspend(cluster, inside, run.id, is_suspended=True)
        engine = elsewhere.find(run.id)
        engine.stop(run.id)
        if not is_supervised:
            wait_for(lambda: not pods(cluster, inside, run, 1), "the pods to be gone", WAIT_SECONDS)
            suspend(cluster, inside, run.id, is_suspended=False)
        status = engine.wait(run.id, WAIT_SECONDS)
        assert status.phase is Phase.STOPPED
        assert run.wait().phase is Phase.STOPPED
        engine.delete(run.id)
        wait_for(lambda: not left_over(cluster, inside, run.id), "all objects to be gone", WAIT_SECONDS)
        harness.runs.clear()


def test_a_run_is_resumed_from_another_machine(
    cluster: Cluster, inside: str, elsewhere: Machine, tmp_path: Path
) -> None:
    with opened(harness_on(cluster, inside, tmp_path / "home")) as harness:
        run = harness.start("fail_until", "2")
        assert run.wait().phase is Phase.FAILED
        engine = elsewhere.find(run.id)
        engine.resume(run.id)
        status = engine.wait(run.id, WAIT_SECONDS)
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2)
        events(status, elsewhere.store)
        run.until(lambda run: run.status.phase is Phase.SUCCEEDED, runs.ENDED_REFRESH_SECONDS + WAIT_SECONDS)


def test_resumed_run_has_its_original_code_or_on_request_the_current_one(
    cluster: Cluster, inside: str, windlass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(cluster, inside, monkeypatch, cluster.context)
    run = submit(windlass, "raise ValueError('then')\n")
    assert windlass("status", run, "-w", "--exit-code").code == 100
    Path("code/wait.py").write_text("import os, sys\nprint('now', sys.argv[1:], os.environ['BATCH'])\n")
    sent = windlass("resume", run)
    assert (sent.code, "wait.py; the run continues with the code that was sent" in sent.err) == (100, True), sent.err
    done = windlass("resume", run, "-e", "BATCH=16", "--", "--lr", "0.1")
    assert (done.code, "now ['--lr', '0.1'] 16" in done.out) == (0, True), done.err


def test_hang_and_time_limit_are_detected_without_a_users_machine(
    cluster: Cluster, inside: str, elsewhere: Machine, tmp_path: Path
) -> None:
    with opened(harness_on(cluster, inside, tmp_path / "home", grace="2s")) as harness:
        hang = f"{HANG_SECONDS}s"
        hangs = harness.start("hang_once", hang=hang, restarts={"max": 1})
        late = harness.start("sleep", "600", timeout="25s")
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "steady.py").write_text(STEADY)
        steady = harness.start("steady.py", base=tmp_path / "code", hang=hang, restarts={"max": 1})
        harness.runs.clear()
        engine = elsewhere.find(hangs.id)
        status = engine.wait(hangs.id, WAIT_SECONDS)
        [seen] = [event.data for event in events(status, elsewhere.store) if event.kind == "hang"][:1]
        assert "hang_once" in seen["ranks"][0]["stack"], "the stack came over the pod's connection"
        status = elsewhere.find(steady.id).wait(steady.id, WAIT_SECONDS)
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 1), "what ranks print is a sign of life"
        status = elsewhere.find(late.id).wait(late.id, WAIT_SECONDS)
        # On a slow machine the time limit is reached before the supervisor has started the attempt.
        assert (status.phase, events(status, elsewhere.store)[-1].data["reason"]) == (Phase.FAILED, "timeout")


def test_a_lost_pod_is_replaced_and_the_others_are_kept(cluster: Cluster, inside: str, tmp_path: Path) -> None:
    with opened(_three_nodes(cluster, inside, tmp_path)) as harness:
        run = harness.start("loses.py", base=tmp_path / "code", nodes=3, procs_per_node=1).until_ready(3)
        lost = lose_pod(cluster, inside, run, 1)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
        assert_replaced(cluster, inside, run, lost)
        [decided] = [event.data for event in events(status, harness.store) if event.kind == "pods"]
        assert decided == {"attempt": 2, "made_for": 1, "pods": [[1, 0], [2, 0], [1, 2]]}
        assert [run.raw(rank, attempt=2) != b"" for rank in range(3)] == [True] * 3


def test_a_replacement_that_a_quota_refuses_is_queued_with_one_reason(
    cluster: Cluster, inside: str, tmp_path: Path
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": {"pods": "3"}}}
    with opened(_three_nodes(cluster, inside, tmp_path)) as harness:
        run = harness.start("loses.py", "waits", base=tmp_path / "code", nodes=3, procs_per_node=1).until_ready(3)
        cluster.apply(quota, namespace=inside)
        lose_pod(cluster, inside, run, 1)
        run.until(lambda run: "exceeded quota: full" in (run.status.waits_for or ""))
        run.until(lambda run: sum(rank.pid is not None for rank in run.status.ranks) == 2)  # ranks of the other pods
        assert run.status.phase is Phase.QUEUED
        found = diagnose(harness.engine.observe(run.id)).verdict
        assert (found.code, len([line for line in found.evidence if "exceeded quota" in line])) == ("quota-exceeded", 1)
        cluster.kubectl("delete", "resourcequota", "full", "-n", inside)
        run.until(lambda run: run.text(attempt=2).count("ready\n") == 3)
        for attempt in (1, 2):
            let_go(cluster, inside, run, attempt)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()


@pytest.mark.nightly
def test_supervisor_killed_during_a_replacement_loses_no_other_pod(
    cluster: Cluster, inside: str, tmp_path: Path
) -> None:
    with opened(_three_nodes(cluster, inside, tmp_path)) as harness:
        run = harness.start("loses.py", "waits", base=tmp_path / "code", nodes=3, procs_per_node=1).until_ready(3)
        lost = lose_pod(cluster, inside, run, 0)
        run.until(lambda run: len(run.status.attempts) == 2)
        kill_supervisor(cluster, inside, run.id)
        run.until(lambda run: run.text(attempt=2).count("ready\n") == 3)
        for attempt in (1, 2):
            let_go(cluster, inside, run, attempt)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 2), run.text()
        assert_replaced(cluster, inside, run, lost)


def _three_nodes(cluster: Cluster, namespace: str, folder: Path) -> Harness:
    (folder / "code").mkdir()
    (folder / "code" / "loses.py").write_text(LOSES_A_POD)
    return harness_on(cluster, namespace, folder / "home", kubernetes={"via": "job"}, restarts={"max": 1})


def lose_pod(cluster: Cluster, namespace: str, run: Run, index: int) -> dict[str, Any]:
    """Deletes a pod of the first attempt at once; returns the pod."""
    lost: dict[str, Any] = pods(cluster, namespace, run, 1)[index]
    name = lost["metadata"]["name"]
    cluster.kubectl("delete", "pod", "-n", namespace, name, "--grace-period=0", "--force", "--wait=false")
    return lost


def assert_replaced(cluster: Cluster, namespace: str, run: Run, lost: dict[str, Any]) -> None:
    """Asserts that two pods ran both attempts, and one was created for the second."""
    kept, [new] = pods(cluster, namespace, run, 1), pods(cluster, namespace, run, 2)
    assert [lost["metadata"]["uid"] != one["metadata"]["uid"] for one in (*kept, new)] == [True] * 3
    said = [log_of(cluster, namespace, one) for one in (*kept, new)]
    assert ["[a] 2\n" in text for text in said] == [True, True, False]
