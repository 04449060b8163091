"""A run continues after the machine that started it is gone, and all other machines report the same about it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import OPERATORS, set_up
from tests.cluster.test_queue import hold, narrow
from tests.helpers.machine import Machine

from windlass.engines.kubernetes.objects import layout
from windlass.runs.phase import Phase

__all__ = ["narrow"]

SCRIPT = """
import os, signal, sys, time
fault, attempt, rank = sys.argv[1], os.environ["WINDLASS_ATTEMPT"], os.environ["WINDLASS_RANK"]
print(f"attempt {attempt} of rank {rank}", flush=True)
if attempt == "1":
    time.sleep(8)
    if fault == "rank" and rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "end" and rank == "1":
        raise RuntimeError("no such file: weights.bin")
    while True:
        time.sleep(1)
if fault == "shrinks":
    print('::windlass {"checkpoint": {"action": "saved", "step": 1}}', flush=True)
    while attempt == "2" or os.environ["WINDLASS_WORLD_SIZE"] == "1":
        time.sleep(1)
"""
WAIT_SECONDS = 600.0
AGAIN = {"restarts": {"max": 9, "on": ["failure", "preemption", "node-loss", "hang"]}}

Machines = Callable[[Cluster, str, str], Machine]

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Story:
    """A fault with its expected consequences."""

    fault: str
    phase: str
    ends: str
    """Pattern of the reasons why each attempt ended; `ok` for a successful one."""
    num_ranks: int = 2
    job: dict[str, Any] = field(default_factory=dict)


QUICK = (
    Story("rank", "succeeded", "failure ok", job=AGAIN),
    Story("pod", "succeeded", "(preemption|node-loss) ok", job={**AGAIN, "kubernetes": {"via": "job"}}),
    Story("end", "failed", "failure"),
)
LATE = (
    Story("hang", "succeeded", "(hang )+ok", 1, {**AGAIN, "hang": "30s"}),
    Story("timeout", "failed", "(timeout)?", 1, {**AGAIN, "timeout": "20s"}),
)
"""Faults that `test_hang_and_time_limit_are_detected_without_a_users_machine` covers too."""
NODE = Story("node", "succeeded", "node-loss ok", 1, {**AGAIN, "kubernetes": {"lost_after": 5}})
PREEMPTION = Story(
    "preemption", "succeeded", "preemption ok", 2, {**AGAIN, "queue": "narrow", "resources": {"cpus": 0.4}}
)
SHRINKS = Story(
    "shrinks",
    "succeeded",
    "(preemption resize|node-loss) resize ok",
    job={**AGAIN, "nodes": {"min": 1, "max": 2}, "kubernetes": {"via": "job"}},
)


def by(via: str) -> tuple[Story, ...]:
    """Returns faults of a rank, a pod and the script, in runs whose pods an operator creates."""
    its: dict[str, Any] = {"kubernetes": {"via": via}, **({"launcher": "mpi"} if via == "mpijob" else {})}
    return (
        Story("rank", "succeeded", "failure ok", job={**AGAIN, **its}),
        Story("pod", "succeeded", "(preemption|node-loss) ok", job={**AGAIN, **its}),
        Story("end", "failed", "failure", job=its),
    )


LOGGED: dict[str, tuple[int, ...]] = {"timeout": (), "end": ()}
"""Ranks whose output must exist, if not all. A slow machine may reach the timeout before a rank starts; once a pod has
failed and no attempt follows, the cluster deletes pods before their end is observed."""


@pytest.fixture
def inside(cluster: Cluster, namespace: str) -> str:
    """Namespace with supervisors in the cluster."""
    set_up(cluster, namespace)
    return namespace


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Function `machines(cluster, namespace, name)` that returns a user's machine with an empty home."""
    made: list[Machine] = []

    def make(cluster: Cluster, namespace: str, name: str) -> Machine:
        machine = Machine(tmp_path / name / "home", tmp_path / name / "job")
        made.append(machine)
        machine.write(".kube/config", Path(cluster.kubeconfig).read_text())
        target = {
            "kind": "kubernetes",
            "context": cluster.context,
            "namespace": namespace,
            "image": cluster.image,
            "python": cluster.python,
        }
        machine.write("targets.yaml", json.dumps({"bed": target}))
        machine.write("code/script.py", SCRIPT)
        return machine

    yield make
    for one in made:
        one.kill_all()


def submitted(machine: Machine, story: Story) -> str:
    job = {
        "name": story.fault,
        "run": f"script.py {story.fault}",
        "code": "code",
        "launcher": "plain",
        "grace": "2s",
        "nodes": story.num_ranks,
        **story.job,
    }
    machine.write("job.yaml", json.dumps(job))
    done = machine.windlass("run", "--on", "bed", "-d", "-q")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def switch_off(machine: Machine) -> None:
    """Ends all processes of a machine, and deletes its home and its folder."""
    machine.kill_all()
    for folder in (machine.home, machine.folder):
        shutil.rmtree(folder)
    assert machine.everything() == []


def pods(cluster: Cluster, namespace: str, run_id: str) -> list[dict[str, Any]]:
    """Returns the training pods."""
    chosen = f"windlass.dev/run={run_id},windlass.dev/attempt"
    found = json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-l", chosen, "-o", "json"))["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def training(cluster: Cluster, namespace: str, run_id: str, story: Story) -> list[dict[str, Any]]:
    """Returns the pods of a run that trains by its record in the cluster, without using a command."""
    # The record does not exist until the supervisor has started, which may be after the pods.
    head = ("get", "configmap", layout.record_name(run_id), "-n", namespace, "-o", "json", "--ignore-not-found")

    def look() -> list[dict[str, Any]]:
        found = pods(cluster, namespace, run_id)
        is_running = len(found) == story.num_ranks and all(pod["status"]["phase"] == "Running" for pod in found)
        record = json.loads((is_running and cluster.kubectl(*head)) or "{}")
        notes = record.get("metadata", {}).get("annotations", {})
        is_training = json.loads(notes.get(layout.STATUS_ANNOTATION, "{}")).get("phase") == Phase.TRAINING
        return found if is_training else []

    found: list[dict[str, Any]] = wait_for(look, f"{run_id} to train", WAIT_SECONDS)
    return found


def end_of(cluster: Cluster, namespace: str, run_id: str) -> None:
    """Waits until the supervisor is done, without a command that reads the run."""
    its = ("get", "job", f"{run_id}-supervisor", "-n", namespace, "-o", "jsonpath={.status.succeeded}")
    wait_for(lambda: cluster.kubectl(*its) == "1", f"the end of {run_id}", WAIT_SECONDS)


def settled(cluster: Cluster, namespace: str, run_id: str) -> None:
    """Waits until no pod of a run runs or is being deleted, so that every machine observes the same."""

    def is_so() -> bool:
        return all(
            pod["status"]["phase"] in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]
            for pod in pods(cluster, namespace, run_id)
        )

    wait_for(is_so, f"the pods of {run_id} to end", WAIT_SECONDS)


def view(machine: Machine, run_id: str) -> dict[str, Any]:
    """Returns everything that a machine reports about a run; lines of each rank are in order, those of several ranks
    are not.
    """
    views: dict[str, Any] = {}
    for words in (
        ("status", run_id, "--on", "bed", "-o", "json"),
        ("events", run_id, "-o", "json"),
        ("logs", run_id),
        ("why", run_id, "-o", "json"),
    ):
        done = machine.windlass(*words)
        views[words[0]] = sorted(done.stdout.splitlines()) if words[0] == "logs" else done.stdout
        assert views[words[0]] or words[0] == "logs", (words, done.stderr)
        print(f"{machine.home.parent.name}: {' '.join(words)}: exit {done.returncode}: {done.stderr}")
    return views


def is_in_the_same_pods(found: dict[str, Any]) -> bool:
    """Returns whether the second attempt ran in the pods of the first, by the record: on a slow machine they may answer
    too late.
    """
    decided = [json.loads(line) for line in found["events"].splitlines() if '"kind": "pods"' in line]
    return bool(decided) and "pods" not in decided[-1] and (decided[-1]["attempt"], decided[-1]["made_for"]) == (2, 1)


def require_true(story: Story, found: dict[str, Any]) -> None:
    status = json.loads(found["status"])
    ends = [attempt["reason"] or "ok" for attempt in status["attempts"]]
    assert status["phase"] == story.phase, found["events"]
    assert re.fullmatch(story.ends, " ".join(ends)), found["events"]
    for rank in LOGGED.get(story.fault, range(story.num_ranks)):
        first = 1 if story.fault == "rank" and is_in_the_same_pods(found) else len(ends)
        for attempt in range(first, len(ends) + 1):  # the pods of these attempts exist until the end
            assert f"[{rank}] attempt {attempt} of rank {rank}" in found["logs"], found["logs"]
    if story.fault == "end":
        assert "no such file: weights.bin" in found["why"]


def play(
    stories: tuple[Story, ...],
    cluster: Cluster,
    namespace: str,
    machines: Machines,
    faults: dict[str, Callable[[list[dict[str, Any]]], object]],
) -> None:
    """Runs each fault with a machine that is gone before the fault; two other machines must report the same."""
    first = machines(cluster, namespace, "first")
    runs = [(story, submitted(first, story)) for story in stories]
    switch_off(first)
    for story, run_id in runs:
        if fault := faults.get(story.fault):
            fault(training(cluster, namespace, run_id, story))
    for story, run_id in runs:
        end_of(cluster, namespace, run_id)
        if story.fault != "node":  # nothing reports the end of pods on a lost node
            settled(cluster, namespace, run_id)
    second, third = (machines(cluster, namespace, name) for name in ("second", "third"))
    for story, run_id in runs:
        found = view(second, run_id)
        require_true(story, found)
        assert found == view(third, run_id)


def test_failing_rank_lost_pod_and_success_are_reported_without_the_submitting_machine(
    cluster: Cluster, inside: str, machines: Machines
) -> None:
    play(QUICK, cluster, inside, machines, {"pod": deletes(cluster, inside)})


@pytest.mark.nightly
def test_hang_and_timeout_are_reported_without_the_submitting_machine(
    cluster: Cluster, inside: str, machines: Machines
) -> None:
    play(LATE, cluster, inside, machines, {})


def deletes(cluster: Cluster, namespace: str) -> Callable[[list[dict[str, Any]]], object]:
    """Returns a function that deletes the first of the given pods at once."""

    def delete(found: list[dict[str, Any]]) -> None:
        name = found[0]["metadata"]["name"]
        cluster.kubectl("delete", "pod", "-n", namespace, name, "--grace-period=0", "--force")

    return delete


@pytest.mark.operators
@pytest.mark.parametrize("via", OPERATORS)
def test_operator_kinds_report_faults_without_the_submitting_machine(
    cluster: Cluster, namespace: str, operator: Callable[[str], None], machines: Machines, via: str
) -> None:
    operator(OPERATORS[via])  # before the setup, which grants permissions for the served kinds
    set_up(cluster, namespace)
    play(by(via), cluster, namespace, machines, {"pod": deletes(cluster, namespace)})


@pytest.mark.nightly
def test_elastic_run_without_capacity_is_reported_without_the_submitting_machine(
    cluster: Cluster, inside: str, machines: Machines
) -> None:
    def fill(found: list[dict[str, Any]]) -> None:
        """Leaves capacity for the supervisor and one node until the run has continued with that."""
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "room"},
            "spec": {"hard": {"pods": "2"}},
        }
        cluster.apply(quota, namespace=inside)
        deletes(cluster, inside)(found[1:])
        run_id = found[0]["metadata"]["labels"]["windlass.dev/run"]
        chosen = ("-n", inside, "-l", f"windlass.dev/helper={run_id}-capacity", "-o", "name")
        wait_for(lambda: cluster.kubectl("get", "jobs", *chosen), "the run to look for room", WAIT_SECONDS)
        cluster.kubectl("delete", "resourcequota", "room", "-n", inside)

    play((SHRINKS,), cluster, inside, machines, {"shrinks": fill})


@pytest.mark.nightly
def test_lost_node_is_reported_without_the_submitting_machine(
    lone_bed: Bed, lone_namespace: str, machines: Machines
) -> None:
    set_up(lone_bed, lone_namespace)
    lost: list[str] = []

    def kill(found: list[dict[str, Any]]) -> None:
        lost.append(found[0]["spec"]["nodeName"])
        lone_bed.kill_node(lost[0])

    try:
        play((NODE,), lone_bed, lone_namespace, machines, {"node": kill})
    finally:
        for name in lost:
            lone_bed.start_node(name)


@pytest.mark.operators
def test_preemption_is_reported_without_the_submitting_machine(
    cluster: Cluster, narrow: str, inside: str, machines: Machines
) -> None:
    """Kueue does not preempt the supervisor itself, whose Job names no queue.

    Kueue is installed before the setup, which grants permissions for the served kinds.
    """

    def preempt(found: list[dict[str, Any]]) -> None:
        hold(cluster, inside, "urgent", narrow)
        wait_for(lambda: not live(found), "the pods to make room", WAIT_SECONDS)
        cluster.kubectl("delete", "job", "urgent", "-n", inside, "--wait=false")

    def live(found: list[dict[str, Any]]) -> set[str]:
        names = {pod["metadata"]["name"] for pod in found}
        now = cluster.kubectl("get", "pods", "-n", inside, "-o", "jsonpath={.items[*].metadata.name}")
        return names & set(now.split())

    play((PREEMPTION,), cluster, inside, machines, {"preemption": preempt})
