"""The machine that starts a run is gone before anything happens to it: it goes on, and all others see the same."""

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
    """A fault, and what comes of it."""

    fault: str
    phase: str
    ends: str
    """Why each attempt ended, as a pattern: in words, with `ok` for one that succeeded."""
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
"""What `test_a_hang_and_the_time_limit_are_found_without_a_machine` has too."""
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
    """A rank, a pod, and the script fail in runs whose pods an operator creates."""
    its: dict[str, Any] = {"kubernetes": {"via": via}, **({"launcher": "mpi"} if via == "mpijob" else {})}
    return (
        Story("rank", "succeeded", "failure ok", job={**AGAIN, **its}),
        Story("pod", "succeeded", "(preemption|node-loss) ok", job={**AGAIN, **its}),
        Story("end", "failed", "failure", job=its),
    )


LOGGED: dict[str, tuple[int, ...]] = {"timeout": (), "end": ()}
"""Ranks whose output must be there, where not all. A slow machine reaches the timeout before a rank begins; once a pod
has failed and no attempt follows, the cluster deletes the pods that it has not seen end."""


@pytest.fixture
def inside(cluster: Cluster, namespace: str) -> str:
    """A namespace whose runs are supervised inside."""
    set_up(cluster, namespace)
    return namespace


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """`machines(cluster, namespace, name)` → a machine of a user, whose home is empty."""
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
    """End all processes of a machine, and delete its home and its folder."""
    machine.kill_all()
    for folder in (machine.home, machine.folder):
        shutil.rmtree(folder)
    assert machine.everything() == []


def pods(cluster: Cluster, namespace: str, run_id: str) -> list[dict[str, Any]]:
    """The pods that train."""
    chosen = f"windlass.dev/run={run_id},windlass.dev/attempt"
    found = json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-l", chosen, "-o", "json"))["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def training(cluster: Cluster, namespace: str, run_id: str, story: Story) -> list[dict[str, Any]]:
    """The pods of a run that trains, as its record says, which no command has read."""
    # There is none until the supervisor has begun, which may be after the pods.
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
    """Wait until the supervisor has done all: no command has looked at the run meanwhile."""
    its = ("get", "job", f"{run_id}-supervisor", "-n", namespace, "-o", "jsonpath={.status.succeeded}")
    wait_for(lambda: cluster.kubectl(*its) == "1", f"the end of {run_id}", WAIT_SECONDS)


def settled(cluster: Cluster, namespace: str, run_id: str) -> None:
    """Wait until no pod of a run runs or is being deleted: every machine sees the same of them from then on."""

    def is_so() -> bool:
        return all(
            pod["status"]["phase"] in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]
            for pod in pods(cluster, namespace, run_id)
        )

    wait_for(is_so, f"the pods of {run_id} to end", WAIT_SECONDS)


def view(machine: Machine, run_id: str) -> dict[str, Any]:
    """All that a machine says of a run; the lines of each rank are in order, and those of several in any."""
    views = {}
    for words in (
        ("status", run_id, "--on", "bed", "-o", "json"),
        ("events", run_id, "-o", "json"),
        ("logs", run_id),
        ("why", run_id, "-o", "json"),
    ):
        done = machine.windlass(*words)
        views[words[0]] = sorted(done.stdout.splitlines()) if words[0] == "logs" else done.stdout
        assert views[words[0]] or words[0] == "logs", (words, done.stderr)
    return views


def is_in_the_same_pods(found: dict[str, Any]) -> bool:
    """Whether the second attempt ran in the pods of the first, by the record: on a slow machine they answer late."""
    decided = [json.loads(line) for line in found["events"].splitlines() if '"kind": "pods"' in line]
    return bool(decided) and "pods" not in decided[-1] and (decided[-1]["attempt"], decided[-1]["made_for"]) == (2, 1)


def require_true(story: Story, found: dict[str, Any]) -> None:
    status = json.loads(found["status"])
    ends = [attempt["reason"] or "ok" for attempt in status["attempts"]]
    assert status["phase"] == story.phase, found["events"]
    assert re.fullmatch(story.ends, " ".join(ends)), found["events"]
    for rank in LOGGED.get(story.fault, range(story.num_ranks)):
        first = 1 if story.fault == "rank" and is_in_the_same_pods(found) else len(ends)
        for attempt in range(first, len(ends) + 1):  # its pods are there to the end
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
    """Each story, by a machine that is gone before the fault; two others must see the same."""
    first = machines(cluster, namespace, "first")
    runs = [(story, submitted(first, story)) for story in stories]
    switch_off(first)
    for story, run_id in runs:
        if fault := faults.get(story.fault):
            fault(training(cluster, namespace, run_id, story))
    for story, run_id in runs:
        end_of(cluster, namespace, run_id)
        if story.fault != "node":  # nothing reports the end of the pods of a lost one
            settled(cluster, namespace, run_id)
    second, third = (machines(cluster, namespace, name) for name in ("second", "third"))
    for story, run_id in runs:
        found = view(second, run_id)
        require_true(story, found)
        assert found == view(third, run_id)


def test_a_rank_a_pod_and_the_end(cluster: Cluster, inside: str, machines: Machines) -> None:
    play(QUICK, cluster, inside, machines, {"pod": deletes(cluster, inside)})


@pytest.mark.nightly
def test_a_hang_and_a_timeout(cluster: Cluster, inside: str, machines: Machines) -> None:
    play(LATE, cluster, inside, machines, {})


def deletes(cluster: Cluster, namespace: str) -> Callable[[list[dict[str, Any]]], object]:
    """Deletes the first of the pods that it is given, at once."""

    def delete(found: list[dict[str, Any]]) -> None:
        name = found[0]["metadata"]["name"]
        cluster.kubectl("delete", "pod", "-n", namespace, name, "--grace-period=0", "--force")

    return delete


@pytest.mark.operators
@pytest.mark.parametrize("via", OPERATORS)
def test_a_rank_a_pod_and_the_end_by_an_operator(
    cluster: Cluster, namespace: str, operator: Callable[[str], None], machines: Machines, via: str
) -> None:
    operator(OPERATORS[via])  # before the set-up, which grants the rights on what it serves
    set_up(cluster, namespace)
    play(by(via), cluster, namespace, machines, {"pod": deletes(cluster, namespace)})


@pytest.mark.nightly
def test_an_elastic_run_whose_lost_pod_has_no_room(cluster: Cluster, inside: str, machines: Machines) -> None:
    def fill(found: list[dict[str, Any]]) -> None:
        """Leave room for the supervisor and one node until the run has gone on with that."""
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


def test_a_node(lone_bed: Bed, lone_namespace: str, machines: Machines) -> None:
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
def test_a_preemption(cluster: Cluster, narrow: str, inside: str, machines: Machines) -> None:
    """Of which Kueue takes no notice in the supervisor itself, whose Job names no queue.

    Kueue is there before the set-up, which grants the rights on what it serves.
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
