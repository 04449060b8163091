"""The record stays correct when supervisors of runs on a real cluster are killed, terminated, logged out or
duplicated.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import CAN, PATIENCE_SECONDS, harness_on, let_go, opened, plan_on, pods
from tests.engines.harness import Harness, Run, Way
from tests.engines.kubernetes.running.test_supervision import PLUGIN

from windlass.actions.why import why
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.runs.events import entry_of
from windlass.runs.phase import Phase
from windlass.spec.targets import KubernetesTarget
from windlass.supervise.process import supervisor_pid
from windlass.worker import process

WINDLASS = Path(sys.executable).with_name("windlass")
NUM_KILLS = 6
WAIT_SECONDS = 600.0

pytestmark = pytest.mark.timeout(900)


def has_condition(run: Run, kind: str) -> bool:
    """Returns whether the run has a condition of this type."""
    condition = run.status.supervision.condition
    return condition is not None and condition.type == kind


def supervisor(run: Run) -> int:
    """Returns the process id of a run's supervisor, once it runs."""
    return int(wait_for(lambda: supervisor_pid(run.dir), "a supervisor", WAIT_SECONDS))


def end(pid: int, number: signal.Signals) -> None:
    """Signals a process, and waits until it has exited."""
    os.kill(pid, number)
    wait_for(lambda: (seen := process.stat(pid)) is None or seen.state == "Z", "the process to end", WAIT_SECONDS)


def raw(run: Run) -> Any:
    """Reads the record without a command, so that no supervisor is started."""
    return run.harness.store.status(run.id)


def kinds(run: Run, *wanted: str) -> list[str]:
    return [event.kind for event in run.events if event.kind in wanted]


def phases(cluster: Cluster, namespace: str, run: Run) -> list[str]:
    return [pod["status"]["phase"] for pod in pods(cluster, namespace, run, 1)]


def succeeded_at_once(cluster: Cluster, namespace: str, run: Run) -> None:
    """Asserts one undisturbed attempt, by the record and by the pods."""
    status = run.wait()
    assert (status.phase, len(status.attempts), status.exit_code) == (Phase.SUCCEEDED, 1, 0), run.text()
    assert status.supervision.condition is None
    assert kinds(run, "notice", "lost-node", "cause", "attempt-end", "stop") == []
    wait_for(lambda: phases(cluster, namespace, run) == ["Succeeded"], "the pod to be shown as ended", WAIT_SECONDS)


def test_sigterm_to_a_supervisor_does_not_affect_its_pods(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        end(supervisor(run), signal.SIGTERM)
        found = raw(run)
        assert found.phase is Phase.TRAINING
        assert "no supervisor is attached" in found.supervision.condition.message
        assert phases(cluster, namespace, run) == ["Running"]
        let_go(cluster, namespace, run)
        succeeded_at_once(cluster, namespace, run)


def test_six_killed_supervisors_of_one_attempt_lose_no_line(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        for number in range(NUM_KILLS):
            end(supervisor(run), signal.SIGKILL)
            run.until(lambda run, number=number: run.status and kinds(run, "adopted") == ["adopted"] * (number + 1))  # type: ignore[misc]
        assert phases(cluster, namespace, run) == ["Running"]
        let_go(cluster, namespace, run)
        succeeded_at_once(cluster, namespace, run)


def test_temporarily_failing_login_does_not_affect_a_run(bed: Bed, namespace: str, tmp_path: Path) -> None:
    says, program, config = tmp_path / "says.json", tmp_path / "plugin.py", tmp_path / "config"
    program.write_text(PLUGIN)
    document = json.loads(Path(bed.kubeconfig).read_text())
    [mine] = [user for user in document["users"] if user["name"] == "admin"]
    works = json.dumps(mine["user"])
    mine["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "interactiveMode": "Never",
            "args": [str(program), str(says)],
        }
    }
    config.write_text(json.dumps(document))
    says.write_text(works)
    target = KubernetesTarget(name="bed", context=bed.context, namespace=namespace, image=bed.image, python=bed.python)
    way = Way(
        "login",
        KubernetesEngine,
        functools.partial(plan_on, target, str(config)),
        CAN,
        {},
        patience_seconds=PATIENCE_SECONDS,
    )
    with opened(Harness(way, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        says.write_text('{"error": "the SSO session has expired"}')
        end(supervisor(run), signal.SIGKILL)
        run.until(lambda run: has_condition(run, "LoginFailed"), WAIT_SECONDS)
        assert "the SSO session has expired" in raw(run).supervision.condition.message
        verdict = why(run.id, harness.engine).verdict
        assert "the SSO session has expired" in verdict.summary
        assert any("cannot log in to the cluster" in line for line in verdict.evidence)
        assert phases(bed, namespace, run) == ["Running"]
        says.write_text(works)
        run.until(lambda run: run.status.supervision.condition is None, WAIT_SECONDS)
        let_go(bed, namespace, run)
        succeeded_at_once(bed, namespace, run)


@pytest.mark.nightly
def test_api_server_killed_before_the_end_of_a_run_does_not_hide_the_end(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    with opened(harness_on(lone_bed, lone_namespace, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        pid = supervisor(run)
        os.kill(pid, signal.SIGSTOP)
        try:
            let_go(lone_bed, lone_namespace, run)
            wait_for(lambda: phases(lone_bed, lone_namespace, run) == ["Succeeded"], "the pod to end", WAIT_SECONDS)
            lone_bed.kill_api_server()
            os.kill(pid, signal.SIGCONT)
            wait_for(
                lambda: raw(run).phase.is_terminal or raw(run).supervision.condition is not None,
                "it to be noticed",
                WAIT_SECONDS,
            )
        finally:
            os.kill(pid, signal.SIGCONT)
            lone_bed.start_api_server()
        succeeded_at_once(lone_bed, lone_namespace, run)
        assert not (run.dir / "supervisor.crash").exists()


def test_pods_end_at_their_deadline_while_no_supervisor_watches(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("sleep", "600", timeout="1h", grace="1s", restarts=3).until_ready()
        end(supervisor(run), signal.SIGKILL)
        [pod] = pods(cluster, namespace, run, 1)
        assert pod["spec"]["activeDeadlineSeconds"] > 3600
        name = pod["metadata"]["name"]
        cluster.kubectl("patch", "pod", "-n", namespace, name, "-p", '{"spec": {"activeDeadlineSeconds": 1}}')
        wait_for(lambda: phases(cluster, namespace, run) == ["Failed"], "the kubelet to end the pod", WAIT_SECONDS)
        status = run.wait()
        assert (status.phase, status.exit_code, len(status.attempts)) == (Phase.FAILED, 124, 1)
        assert status.attempts[0].reason == "timeout"
        assert why(run.id, harness.engine).verdict.code == "timeout"


@pytest.mark.usefixtures("ours_to_break")
def test_only_one_of_two_machines_with_the_same_record_supervises_a_run(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The other machine is this one under another name, with a copy of the home."""
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        pid = supervisor(run)
        other = tmp_path / "other"
        os.kill(pid, signal.SIGSTOP)  # so that no file is replaced while it is copied
        shutil.copytree(tmp_path / "home", other)
        os.kill(pid, signal.SIGCONT)
        (other / "runs" / run.id / "supervisor.pid").unlink()
        shell = f"hostname other-machine && exec {WINDLASS} status {run.id} -o json"
        env = {**os.environ, "WINDLASS_HOME": str(other)}
        done = subprocess.run(["unshare", "--uts", "sh", "-c", shell], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        condition = json.loads(done.stdout)["condition"]
        assert condition["type"] == "SupervisedElsewhere", done.stdout
        assert f"process {supervisor(run)} on {os.uname().nodename}" in condition["message"]
        assert supervisor_pid(other / "runs" / run.id) is None
        let_go(cluster, namespace, run)
        succeeded_at_once(cluster, namespace, run)


def test_run_falsely_recorded_as_lost_can_be_stopped(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("sleep", "600", grace="1s").until_ready()
        end(supervisor(run), signal.SIGKILL)
        writer = harness.store.writer(run.id)
        assert writer is not None
        writer.append(entry_of("end", {"phase": "lost"}))
        writer.close()
        # The first answer may lack the condition: a busy cluster may exceed the time limit of a command.
        run.until(lambda run: has_condition(run, "PodsStillRunning"), WAIT_SECONDS)
        env = {**os.environ, "WINDLASS_HOME": str(harness.home)}
        done = subprocess.run([WINDLASS, "stop", run.id], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "pods that still ran were deleted" in done.stdout
        wait_for(lambda: phases(cluster, namespace, run) == [], "its pods to be gone", WAIT_SECONDS)
        assert run.status.supervision.condition is None
