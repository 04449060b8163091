"""Each operator of the test cluster runs its workload under pod security `restricted`, and leaves no trace when
stopped.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from tests.cluster import objects, operated
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import BedError, wait_for
from tests.cluster.bed.operators import OLD_TRAINER, ON_DEMAND

PATIENCE = "--timeout=240s"
Start = Callable[[str], None]

pytestmark = [pytest.mark.operators, pytest.mark.timeout(600)]


def said(cluster: Cluster, namespace: str, selector: str) -> list[str]:
    """Returns what the pods printed about their sum."""
    lines = cluster.kubectl("logs", "-n", namespace, "-l", selector, "--tail=-1").splitlines()
    return sorted(line.split("sum ")[1] for line in lines if "sum " in line)


def read(cluster: Cluster, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", *args, "-o", "json"))
    return found


def test_a_trainjob_trains(cluster: Cluster, namespace: str, operator: Start) -> None:
    operator("trainer")
    cluster.apply(operated.training_runtime(cluster), namespace=namespace)
    cluster.apply(operated.trainjob("digits"), namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=complete", "trainjob/digits", PATIENCE)
    assert said(cluster, namespace, "jobset.sigs.k8s.io/jobset-name=digits") == ["3.0", "3.0"]


def test_a_pytorchjob_trains(cluster: Cluster, namespace: str, operator: Start) -> None:
    operator("training-operator")
    cluster.apply(operated.pytorchjob(cluster, "digits"), namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=succeeded", "pytorchjob/digits", PATIENCE)
    assert said(cluster, namespace, "training.kubeflow.org/job-name=digits") == ["3.0", "3.0"]


def test_an_mpijob_trains_with_an_sshd_that_is_not_root(cluster: Cluster, namespace: str, operator: Start) -> None:
    operator("mpi-operator")
    cluster.apply(operated.mpijob(cluster, "digits"), namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=succeeded", "mpijob/digits", PATIENCE)
    assert said(cluster, namespace, "training.kubeflow.org/job-role=launcher") == ["3.0", "3.0"]


def test_queue_with_capacity_for_one_job_runs_jobs_sequentially(
    cluster: Cluster, namespace: str, operator: Start
) -> None:
    operator("kueue")
    cluster.apply(*operated.queue("narrow", namespace, "1"), namespace=namespace)
    program = "import time; time.sleep(2)"
    names = ("first", "second")
    jobs = [operated.queued_job(cluster, each, "narrow", program, "800m") for each in names]
    cluster.apply(*jobs, namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=complete", "job/first", "job/second", PATIENCE)
    earlier, later = sorted(_ran(cluster, namespace, each) for each in names)
    assert earlier[1] <= later[0]


def _ran(cluster: Cluster, namespace: str, job: str) -> tuple[datetime, datetime]:
    """Returns when the container of a Job started and ended, in whole seconds."""
    [pod] = read(cluster, "pods", "-n", namespace, "-l", f"job-name={job}")["items"]
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return datetime.fromisoformat(ended["startedAt"]), datetime.fromisoformat(ended["finishedAt"])


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "mpijob", "jobset"])
def test_kueue_suspends_every_kind_with_a_queue(cluster: Cluster, namespace: str, operator: Start, kind: str) -> None:
    for name in ("trainer", "training-operator", "mpi-operator", "kueue"):
        operator(name)
    made = {
        "pytorchjob": lambda: operated.pytorchjob(cluster, "held"),
        "trainjob": lambda: operated.trainjob("held"),
        "mpijob": lambda: operated.mpijob(cluster, "held"),
        "jobset": lambda: objects.jobset(cluster, "held"),
    }[kind]()
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "not-there"}
    cluster.apply(operated.training_runtime(cluster), made, namespace=namespace)
    spec = read(cluster, kind, "held", "-n", namespace)["spec"]
    assert (spec | spec.get("runPolicy", {}))["suspend"] is True
    wait_for(lambda: read(cluster, "workloads.kueue.x-k8s.io", "-n", namespace)["items"], "Kueue's record of it", 240)
    assert not read(cluster, "pods", "-n", namespace)["items"]


@pytest.mark.parametrize("name", ON_DEMAND)
def test_stopped_operator_leaves_the_test_cluster_unchanged(lone_bed: Bed, lone_namespace: str, name: str) -> None:
    before = _installed(lone_bed)
    lone_bed.start_operator(name)
    assert ON_DEMAND[name].kind in _installed(lone_bed)
    _leave_something(lone_bed, lone_namespace, name)
    lone_bed.stop_operator(name)
    assert _installed(lone_bed) == before
    lone_bed.apply(objects.job(lone_bed, "plain", "print('ran')"), namespace=lone_namespace)
    lone_bed.kubectl("wait", "-n", lone_namespace, "--for=condition=complete", "job/plain", PATIENCE)


def _installed(bed: Bed) -> list[str]:
    """Returns the names of all definitions and webhooks."""
    resources = "crd,mutatingwebhookconfigurations,validatingwebhookconfigurations"
    names = bed.kubectl("get", resources, "-o", "jsonpath={range .items[*]}{.metadata.name}{' '}{end}").split()
    return sorted(names)


def _leave_something(bed: Bed, namespace: str, name: str) -> None:
    """Creates objects of the operator's kinds, some with finalizers that only the operator would remove."""

    trainjob = (operated.training_runtime(bed), operated.trainjob("left"))
    left: dict[str, tuple[objects.Object, ...]] = {
        "trainer": trainjob,
        "trainer-2.1": trainjob,
        "training-operator": (operated.pytorchjob(bed, "left"),),
        "mpi-operator": (operated.mpijob(bed, "left"),),
        "karpenter": (*operated.node_pool(namespace, "p4d.24xlarge"), *operated.hungry(bed, namespace, 8)),
        "kueue": (
            *operated.queue("left", namespace, "1"),
            operated.queued_job(bed, "left", "left", objects.SLEEP, "100m"),
        ),
    }
    bed.apply(*left[name], namespace=namespace)


def test_a_bed_has_one_trainer_at_a_time(bed: Bed, operator: Start) -> None:
    operator("trainer")
    with pytest.raises(BedError, match=r"trainer-2\.1: trainer runs in this bed, and has the same kinds"):
        bed.start_operator("trainer-2.1")


@pytest.mark.parametrize("name", [each for each in ON_DEMAND if ON_DEMAND[each].refuses and each != OLD_TRAINER.name])
def test_invalid_object_is_refused_by_the_webhook_of_its_operator(bed: Bed, operator: Start, name: str) -> None:
    operator(name)
    refused = ON_DEMAND[name].refuses
    assert refused
    with pytest.raises(subprocess.CalledProcessError) as told:
        bed.apply(refused[1], namespace="default")
    assert "admission webhook" in told.value.stderr
