"""Conditions that keep a supervisor out of its cluster are found before the run, or shown as a condition with a fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import harness_on, let_go, opened, plan_on, set_up, target_on
from tests.cluster.test_supervised_inside import supervisors
from tests.engines.harness import SCRIPTS, Run

from windlass.actions.why import why
from windlass.engines.kubernetes.planning.dry_run import dry_run
from windlass.engines.kubernetes.reading.preflight.report import check
from windlass.runs.phase import Phase
from windlass.spec.job import Job

WAIT_SECONDS = 600.0
SMALL = {"cpus": 0.2, "memory": "256MiB"}

pytestmark = pytest.mark.timeout(900)


def test_a_quota_on_limits_admits_a_run_and_its_supervisor(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    set_up(cluster, namespace)
    hard = {"limits.cpu": "4", "limits.memory": "8Gi", "requests.cpu": "4"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limits"}, "spec": {"hard": hard}}
    cluster.apply(quota, namespace=namespace)
    wait_for(
        lambda: "limits.cpu" in cluster.kubectl("get", "quota", "limits", "-n", namespace, "-o", "json"), "a quota"
    )
    report = check(target_on(cluster, namespace), {"KUBECONFIG": cluster.kubeconfig})
    assert [one for one in report.checks if one.level == "fail"] == []
    with opened(harness_on(cluster, namespace, tmp_path / "home", resources=SMALL)) as harness:
        run = harness.finish("count.py", "3", base=SCRIPTS, procs_per_node=2)
        assert run.status.phase is Phase.SUCCEEDED, run.text()
        assert run.status.supervision.supervisor == "cluster"


def test_claim_without_a_class_is_refused_without_a_default_class(bed: Bed, namespace: str, tmp_path: Path) -> None:
    job = Job.model_validate({"name": "digits", "command": ["true"], "kubernetes": {"results": {"size": "1GiB"}}})
    made = plan_on(target_on(bed, namespace), bed.kubeconfig, job, tmp_path, tmp_path, "digits-7f3k2")
    assert ("storage-class-missing", True) in [(note.code, note.blocks) for note in dry_run(made)]


@pytest.mark.nightly
def test_a_deleted_service_account_leaves_ranks_unsupervised_until_it_is_set_up_again(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    set_up(cluster, namespace)
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("wait_for", "go").until_ready()
        [pod] = supervisors(cluster, namespace, run.id)
        cluster.kubectl("delete", "serviceaccount", "windlass-supervisor", "-n", namespace)
        cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", namespace, "--grace-period=0", "--force")
        said = wait_for(lambda: unsupervised(run), "the state to be shown", WAIT_SECONDS)
        assert 'serviceaccount "windlass-supervisor" not found' in said
        found = why(run.id, harness.engine).verdict
        assert (found.code, found.summary) == ("service-account-missing", said)
        assert found.fix.startswith("windlass target setup bed")
        set_up(cluster, namespace)
        wait_for(lambda: run.status.supervision.condition is None, "a supervisor", WAIT_SECONDS)
        let_go(cluster, namespace, run)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 1)


def unsupervised(run: Run) -> str:
    """Returns the message of the condition that the run's only pod trains without a supervisor."""
    status = run.status
    said = status.supervision.condition.message if status.supervision.condition is not None else ""
    return said if "1 of 1 pods train unsupervised since" in said and status.phase is Phase.TRAINING else ""


@pytest.mark.nightly
def test_supervisors_run_if_all_nodes_have_the_gpu_taint(lone_bed: Bed, lone_namespace: str, tmp_path: Path) -> None:
    set_up(lone_bed, lone_namespace)
    for node in lone_bed.nodes:
        lone_bed.kubectl("taint", "node", node.name, "nvidia.com/gpu=true:NoSchedule")
    fields: dict[str, Any] = {"resources": {"gpus": 1}}
    with opened(harness_on(lone_bed, lone_namespace, tmp_path / "home", **fields)) as harness:
        run = harness.finish("count.py", "3", base=SCRIPTS, procs_per_node=2)
        assert (run.status.phase, run.status.supervision.supervisor) == (Phase.SUCCEEDED, "cluster"), run.text()
    report = check(target_on(lone_bed, lone_namespace), {"KUBECONFIG": lone_bed.kubeconfig})
    [taints] = [one for one in report.checks if one.name == "taints"]
    assert taints.found.startswith("nvidia.com/gpu=true:NoSchedule on 2 of 2 nodes")
    job = Job.model_validate({"name": "digits", "command": ["true"]})
    made = plan_on(target_on(lone_bed, lone_namespace), lone_bed.kubeconfig, job, tmp_path, tmp_path, "digits-7f3k2")
    assert "taint-not-tolerated" in json.dumps([note.code for note in dry_run(made)])
