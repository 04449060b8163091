"""Laboratories of the engine contract whose runs take place in a namespace of a cluster."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster import objects
from tests.cluster.bed.cluster import Bed, Cluster
from tests.engines.harness import Can, Harness, Run, Way

from windlass.actions import exec_copy
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects.layout import OUTPUT
from windlass.engines.kubernetes.planning.facts import boot_program, read_facts
from windlass.engines.kubernetes.planning.plan import plan
from windlass.engines.kubernetes.reading.preflight import setup
from windlass.plan.plan import Plan
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

CAN = frozenset({Can.ANY_LAUNCHER, Can.SCRIPTS, Can.TORCH, Can.PROGRAMS, Can.EVERY_LINE})
ADDED = (
    "KUBERNETES_",
    "HOME",
    "HOSTNAME",
    "JOB_COMPLETION_INDEX",
    "WINDLASS_CODE_DIGEST",
    "JOBSET_",
    "WINDLASS_SUPERVISOR",
    "WINDLASS_KEY_FILE",
    "WINDLASS_POD_NAME",
)
"""How the names begin of variables that a cluster gives to every container."""
OPERATORS = {"trainjob": "trainer", "pytorchjob": "training-operator", "mpijob": "mpi-operator"}
"""What a way needs beside JobSet, by the name that the bed has for it."""
PATIENCE_SECONDS = 600.0
"""Each pod of several imports torch before its first rank starts, and all pods share the cores of one machine."""


def plan_on(target: KubernetesTarget, kubeconfig: str, job: Job, base: Path, home: Path, run_id: str) -> Plan:
    """The plan of a run on the cluster under test."""
    facts = read_facts(job, target, base=base, environ={"KUBECONFIG": kubeconfig})
    return plan(job, target, facts, run_id, boot_program())


def target_on(cluster: Cluster, namespace: str) -> KubernetesTarget:
    """A namespace as a target."""
    return KubernetesTarget(
        name="bed", context=cluster.context, namespace=namespace, image=cluster.image, python=cluster.python
    )


def set_up(cluster: Cluster, namespace: str) -> None:
    """Have the supervisors of runs in a namespace run there, as `windlass target setup` does."""
    setup.create(target_on(cluster, namespace), {"KUBECONFIG": cluster.kubeconfig})


def way_on(cluster: Cluster, namespace: str, name: str, fields: Mapping[str, Any]) -> Way:
    """Runs in a namespace."""
    target = target_on(cluster, namespace)
    plan_here = functools.partial(plan_on, target, cluster.kubeconfig)
    return Way(name, KubernetesEngine, plan_here, CAN, fields, adds=ADDED, patience_seconds=PATIENCE_SECONDS)


def claimed(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """A claim in the namespace, as a job names it: with it ranks on several nodes see each other's files."""
    claim = objects.claim("results")
    if not isinstance(cluster, Bed):
        del claim["spec"]["storageClassName"]
    cluster.apply(claim, namespace=namespace)
    return {"results": {"claim": "results"}}


def harness_on(cluster: Cluster, namespace: str, home: Path, **fields: Any) -> Harness:
    """A laboratory in a namespace; `fields` are those of all its jobs."""
    return Harness(way_on(cluster, namespace, "kubernetes", fields), home)


@contextlib.contextmanager
def opened(harness: Harness) -> Iterator[Harness]:
    """The laboratory, closed at the end."""
    try:
        yield harness
    finally:
        harness.close()


def result(run: Run, name: str, folder: Path) -> Path:
    """A file of the run's results, brought here as `windlass cp` does."""
    path = folder / f"{run.id}-{name}"
    exec_copy.copy(f"{run.id}:output/{name}", str(path), run.harness.store, folder)
    return path


def digest(run: Run, name: str, folder: Path) -> str:
    """SHA-256 of a file of the run's results."""
    return hashlib.sha256(result(run, name, folder).read_bytes()).hexdigest()


def pods(cluster: Cluster, namespace: str, run: Run, attempt: int) -> list[dict[str, Any]]:
    """The pods of an attempt, by place."""
    selector = f"windlass.dev/run={run.id},windlass.dev/attempt={attempt}"
    found = json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def let_go(cluster: Cluster, namespace: str, run: Run, attempt: int = 1, name: str = "go") -> None:
    """End the wait of ranks for a file of this name (`wait_for`): create it in each pod that has results."""
    touch = f"if [ -d {OUTPUT} ]; then touch {OUTPUT}/{name}; fi"  # the launcher of an MPIJob has none
    for pod in pods(cluster, namespace, run, attempt):
        cluster.kubectl("exec", "-n", namespace, pod["metadata"]["name"], "--", "sh", "-c", touch)


def log_of(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> str:
    """What a pod has written; empty where its container has not started, or it is gone."""
    try:
        return cluster.kubectl("logs", "-n", namespace, pod["metadata"]["name"])
    except subprocess.CalledProcessError:
        return ""
