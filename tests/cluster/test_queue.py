"""Runs in a queue of a real Kueue wait, are admitted, are preempted, and wait again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import objects, operated
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.bed.operators import OLD_TRAINER
from tests.cluster.bed.sharing import operating
from tests.cluster.harnesses import OPERATORS, harness_on, opened, pods
from tests.engines.harness import Harness, Run
from tests.helpers.until import until

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.verdict import Verdict
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.planning.dry_run import dry_run
from windlass.engines.kubernetes.reading.observe import observe
from windlass.engines.kubernetes.reading.preflight.checks import checks
from windlass.engines.kubernetes.reading.preflight.survey import survey
from windlass.runs.phase import Phase
from windlass.spec.targets import KubernetesTarget

SCRIPT = """
import os, time
print(f"attempt {os.environ['WINDLASS_ATTEMPT']} of rank {os.environ['WINDLASS_RANK']}", flush=True)
while os.environ["WINDLASS_ATTEMPT"] in os.environ["WAITS"]:
    time.sleep(0.1)
"""
PATIENCE_SECONDS = 300.0
WAYS = ("job", "jobset", "trainjob", "pytorchjob", "mpijob")
pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]
Operator = Callable[[str], None]


@pytest.fixture
def narrow(cluster: Cluster, namespace: str, operator: Operator) -> Iterator[str]:
    """Queue with capacity for one processor, ordered by priority; and the name of the high priority."""
    operator("kueue")
    flavor, cluster_queue, queue = operated.queue("narrow", namespace, "1")
    cluster_queue["spec"]["preemption"] = {"withinClusterQueue": "LowerPriority"}
    meta = {"name": f"urgent-{namespace}"}
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": 1000}
    cluster.apply(flavor, cluster_queue, queue, urgent, namespace=namespace)
    operated.until_collected(cluster, namespace, "narrow")
    yield meta["name"]
    cluster.kubectl("delete", "jobs", "--all", "-n", namespace, "--wait=false")
    for made in (f"clusterqueue/{namespace}", f"resourceflavor/{namespace}", f"priorityclass/urgent-{namespace}"):
        cluster.kubectl("delete", made, "--wait=false", "--ignore-not-found")


def has(operator: Operator, via: str) -> None:
    """Installs the operator of a workload kind."""
    if via in OPERATORS:
        operator(OPERATORS[via])


def script(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir(parents=True)
    (tmp_path / "job" / "script.py").write_text(SCRIPT)
    return tmp_path / "job"


def hold(cluster: Cluster, namespace: str, name: str, priority: str | None = None) -> None:
    """Submits another Job to the queue that uses most of the quota, once admitted."""
    job = operated.queued_job(cluster, name, "narrow", objects.SLEEP, "800m")
    if priority is not None:
        job["spec"]["template"]["spec"]["priorityClassName"] = priority
    cluster.apply(job, namespace=namespace)


def admitted(cluster: Cluster, namespace: str, job: str) -> None:
    def is_awake() -> bool:
        return cluster.kubectl("get", "job", job, "-n", namespace, "-o", "jsonpath={.spec.suspend}") == "false"

    wait_for(is_awake, f"Job {job} to be admitted", PATIENCE_SECONDS)


def nodes(cluster: Cluster) -> list[str]:
    return sorted(cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split())


def waits_in_queue(run: Run) -> bool:
    return run.status.phase is Phase.QUEUED and (run.status.waits_for or "").startswith("queue narrow: WaitingForQuota")


def until_evident(run: Run, code: str, *lines: str) -> None:
    """Waits for this verdict with this evidence: Kueue counts admitted workloads with a delay."""

    def verdict() -> Verdict:
        return diagnose(observe(run.harness.store, run.status)).verdict

    def is_so() -> bool:
        found = verdict()
        return found.code == code and all(line in "\n".join(found.evidence) for line in lines)

    until(is_so, lambda: str(verdict()), PATIENCE_SECONDS)


def told(run: Run) -> list[tuple[str, str]]:
    """Returns what the queue did, by the record."""
    return [(event.data["state"], event.data.get("reason", "")) for event in run.events if event.kind == "queue"]


def makers(cluster: Cluster, namespace: str, run: Run, via: str) -> list[str]:
    words = ("-l", f"windlass.dev/run={run.id}", "-o", "jsonpath={.items[*].metadata.name}")
    return cluster.kubectl("get", via, "-n", namespace, *words).split()


def start(harness: Harness, tmp_path: Path, *, waits: str = "", **fields: Any) -> Run:
    shape = {"nodes": 2, "launcher": "plain", "resources": {"cpus": 0.4}, "queue": "narrow", "env": {"WAITS": waits}}
    return harness.start("script.py", base=script(tmp_path), **{**shape, **fields})


@pytest.mark.parametrize("via", WAYS)
def test_queued_run_reports_what_it_waits_for(
    cluster: Cluster, namespace: str, operator: Operator, narrow: str, tmp_path: Path, via: str
) -> None:
    has(operator, via)
    hold(cluster, namespace, "other")
    admitted(cluster, namespace, "other")
    with opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": via})) as harness:
        run = start(harness, tmp_path, launcher="mpi" if via == "mpijob" else "plain")
        run.until(waits_in_queue)
        until_evident(
            run,
            "queue-quota",
            f"it is number 1 of 1 waiting in ClusterQueue {namespace}",
            "Job other has 800m cpu",
            f"ClusterQueue {namespace} has 1 cpu of flavor {namespace}; 800m is reserved",
        )
        cluster.kubectl("delete", "job", "other", "-n", namespace, "--wait=false")
        status = run.wait()
        assert status.phase is Phase.SUCCEEDED, run.text()
        assert status.times.phases[Phase.QUEUED] > 0
        states = [state for state, _ in told(run)]
        assert (states[0], states[-1]) == ("waiting", "admitted")
        assert len(status.attempts) == 1


@pytest.mark.parametrize("via", WAYS)
def test_preempted_run_is_queued_again(
    cluster: Cluster, namespace: str, operator: Operator, narrow: str, tmp_path: Path, via: str
) -> None:
    has(operator, via)
    again = {"max": 3, "on": ["preemption"]}
    with opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": via}, restarts=again)) as harness:
        run = start(harness, tmp_path, waits="1", launcher="mpi" if via == "mpijob" else "plain")
        run.until(lambda run: all(f"attempt 1 of rank {rank}" in run.text() for rank in (0, 1)))
        hold(cluster, namespace, "urgent", narrow)
        run.until(lambda run: len(run.status.attempts) == 2 and waits_in_queue(run))
        first = run.status.attempts[0]
        assert (first.phase, first.reason) == (Phase.PREEMPTED, "preemption")
        evicted = next(event.data for event in run.events if event.kind == "queue" and event.data["state"] == "evicted")
        assert (evicted["reason"], evicted["by"]) == ("Preempted", "Job urgent")
        assert [event for event in run.events if event.kind in ("lost-node", "cause")] == []
        made = [f"{run.id}-2"]
        wait_for(lambda: makers(cluster, namespace, run, via) == made, "attempt 1 to be gone", PATIENCE_SECONDS)
        until_evident(run, "queue-quota", "attempt 1 was evicted: Preempted, for Job urgent")
        cluster.kubectl("delete", "job", "urgent", "-n", namespace, "--wait=false")
        status = run.wait()
        assert status.phase is Phase.SUCCEEDED, run.text()
        assert ("requeued", "WaitingForQuota") in told(run)
        assert told(run)[-1][0] == "admitted"


@pytest.mark.parametrize("via", [via for via in WAYS if via != "trainjob"])
def test_pods_run_on_nodes_of_their_quotas_flavor(
    cluster: Cluster, namespace: str, operator: Operator, narrow: str, tmp_path: Path, via: str
) -> None:
    has(operator, via)
    run_where_the_flavor_is(cluster, namespace, tmp_path, via)


def test_trainjob_runs_on_nodes_of_its_flavor_with_the_trainer_that_kueue_supports(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    """Trainer 2.2 uses other fields, which Kueue 0.15 and 0.16 do not support; the plan notes that."""
    with operating(lone_bed, OLD_TRAINER.name), operating(lone_bed, "kueue"):
        lone_bed.apply(*operated.queue("narrow", lone_namespace, "1"), namespace=lone_namespace)
        run_where_the_flavor_is(lone_bed, lone_namespace, tmp_path, "trainjob")
        with opened(harness_on(lone_bed, lone_namespace, tmp_path / "plan", kubernetes={"via": "trainjob"})) as harness:
            notes = harness.plan("leave", "0", queue="narrow").notes
            assert [note.blocks for note in notes if note.code == "queue-flavor"] == [False]


def run_where_the_flavor_is(cluster: Cluster, namespace: str, tmp_path: Path, via: str) -> None:
    where = nodes(cluster)[-1]
    cluster.apply(operated.flavor(namespace, {"kubernetes.io/hostname": where}), namespace=namespace)
    with opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": via})) as harness:
        run = start(harness, tmp_path, waits="1", launcher="mpi" if via == "mpijob" else "plain")
        run.until(lambda run: all(f"attempt 1 of rank {rank}" in run.text() for rank in (0, 1)))
        assert {pod["spec"]["nodeName"] for pod in pods(cluster, namespace, run, 1)} == {where}
        harness.engine.stop(run.id)


def test_run_without_restarts_ends_with_the_drain_of_its_queue(
    cluster: Cluster, namespace: str, narrow: str, tmp_path: Path
) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = start(harness, tmp_path, waits="1")
        run.until(lambda run: "attempt 1 of rank 0" in run.text())
        policy = json.dumps({"spec": {"stopPolicy": "HoldAndDrain"}})
        cluster.kubectl("patch", "localqueue", "narrow", "-n", namespace, "--type", "merge", "-p", policy)
        status = run.wait()
        assert (status.phase, status.attempts[-1].reason) == (Phase.STOPPED, "preemption")
        gone = f"Job {run.id}-1 to be gone"
        wait_for(lambda: not makers(cluster, namespace, run, "job"), gone, PATIENCE_SECONDS)
        until_evident(run, "queue-drained")


def test_a_run_whose_workload_is_deactivated_is_stopped_and_not_queued_again(
    cluster: Cluster, namespace: str, narrow: str, tmp_path: Path
) -> None:
    again = {"max": 3, "on": ["preemption", "failure", "node-loss"]}
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts=again)) as harness:
        run = start(harness, tmp_path, waits="1")
        run.until(lambda run: "attempt 1 of rank 0" in run.text())
        [name] = cluster.kubectl(
            "get", "workloads", "-n", namespace, "-o", "jsonpath={.items[?(@.spec.active!=false)].metadata.name}"
        ).split()
        patch = json.dumps({"spec": {"active": False}})
        cluster.kubectl("patch", "workload", name, "-n", namespace, "--type", "merge", "-p", patch)
        status = run.wait()
        assert (status.phase, len(status.attempts), status.attempts[-1].reason) == (Phase.STOPPED, 1, "stop")
        assert [event.data["reason"] for event in run.events if event.kind == "stop"] == ["queue"]
        until_evident(run, "queue-deactivated")


def test_pods_evicted_before_they_ran_do_not_count_as_lost_nodes(
    cluster: Cluster, namespace: str, narrow: str, tmp_path: Path
) -> None:
    image = {"image": "registry.invalid/trainer:1"}
    again = {"max": 3, "on": ["preemption"]}
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts=again, **image)) as harness:
        run = start(harness, tmp_path)
        run.until(lambda run: run.status.phase is Phase.PULLING)
        hold(cluster, namespace, "urgent", narrow)
        run.until(lambda run: len(run.status.attempts) == 2 and waits_in_queue(run))
        assert run.status.attempts[0].reason == "preemption"
        assert [event for event in run.events if event.kind in ("lost-node", "cause")] == []
        harness.engine.stop(run.id)
        assert run.wait().phase is Phase.STOPPED


def test_plan_checks_the_queues_of_the_namespace(cluster: Cluster, namespace: str, narrow: str, tmp_path: Path) -> None:
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        made = {
            name: harness.plan("script.py", base=script(tmp_path / name), queue=name) for name in ("narow", "narrow")
        }
        [note] = [note for note in made["narow"].notes if note.code.startswith("queue")]
        assert (note.code, note.blocks) == ("queue-missing", True)
        assert "did you mean narrow?" in note.message
        assert [note for note in (*made["narrow"].notes, *dry_run(made["narrow"])) if note.blocks] == []
    client = Client(cluster.context, namespace, cluster.kubeconfig)
    target = KubernetesTarget(name="bed", context=cluster.context, namespace=namespace)

    def shown() -> tuple[str, str]:
        [check] = [check for check in checks(survey(client), target) if check.name == "queues"]
        return check.level, check.found

    until(lambda: shown() == ("ok", "narrow (0 admitted, 0 waiting)"), lambda: str(shown()), PATIENCE_SECONDS)
