"""Harnesses of the engine contract whose runs take place in a namespace of a cluster."""

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
"""Prefixes of variables that a cluster sets in every container."""
OPERATORS = {"trainjob": "trainer", "pytorchjob": "training-operator", "mpijob": "mpi-operator"}
"""Operator that each workload kind needs in addition to JobSet, by its name in the test cluster."""
PATIENCE_SECONDS = 600.0
"""Time limit in seconds: each pod imports torch before its first rank starts, and all pods share one machine's
cores."""


def plan_on(target: KubernetesTarget, kubeconfig: str, job: Job, base: Path, home: Path, run_id: str) -> Plan:
    """Returns the plan of a run on the cluster under test."""
    facts = read_facts(job, target, base=base, environ={"KUBECONFIG": kubeconfig})
    return plan(job, target, facts, run_id, boot_program())


def target_on(cluster: Cluster, namespace: str) -> KubernetesTarget:
    """Returns a target for a namespace."""
    return KubernetesTarget(
        name="bed", context=cluster.context, namespace=namespace, image=cluster.image, python=cluster.python
    )


def set_up(cluster: Cluster, namespace: str) -> None:
    """Sets up a namespace for supervisors of its runs, like `windlass target setup`."""
    setup.create(target_on(cluster, namespace), {"KUBECONFIG": cluster.kubeconfig})


def way_on(cluster: Cluster, namespace: str, name: str, fields: Mapping[str, Any]) -> Way:
    """Returns the way to run jobs in a namespace."""
    target = target_on(cluster, namespace)
    plan_here = functools.partial(plan_on, target, cluster.kubeconfig)
    return Way(name, KubernetesEngine, plan_here, CAN, fields, adds=ADDED, patience_seconds=PATIENCE_SECONDS)


def claimed(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Creates a claim and returns it as a job field; with it, ranks on several nodes share files."""
    claim = objects.claim("results")
    if not isinstance(cluster, Bed):
        del claim["spec"]["storageClassName"]
    cluster.apply(claim, namespace=namespace)
    return {"results": {"claim": "results"}}


def harness_on(cluster: Cluster, namespace: str, home: Path, **fields: Any) -> Harness:
    """Returns a harness in a namespace; `fields` apply to all its jobs."""
    return Harness(way_on(cluster, namespace, "kubernetes", fields), home)


@contextlib.contextmanager
def opened(harness: Harness) -> Iterator[Harness]:
    """Closes the harness at the end."""
    try:
        yield harness
    finally:
        harness.close()


def result(run: Run, name: str, folder: Path) -> Path:
    """Fetches a file of the run's results, like `windlass cp`."""
    path = folder / f"{run.id}-{name}"
    exec_copy.copy(f"{run.id}:output/{name}", str(path), run.harness.store, folder)
    return path


def digest(run: Run, name: str, folder: Path) -> str:
    """Returns the SHA-256 digest of a file of the run's results."""
    return hashlib.sha256(result(run, name, folder).read_bytes()).hexdigest()


def pods(cluster: Cluster, namespace: str, run: Run, attempt: int) -> list[dict[str, Any]]:
    """Returns the pods of an attempt, by place."""
    selector = f"windlass.dev/run={run.id},windlass.dev/attempt={attempt}"
    found = json.loads(cluster.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))["items"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def let_go(cluster: Cluster, namespace: str, run: Run, attempt: int = 1, name: str = "go") -> None:
    """Ends the wait of ranks for a file of this name (`wait_for`) by creating it in each pod that has results."""
    touch = f"if [ -d {OUTPUT} ]; then touch {OUTPUT}/{name}; fi"  # the launcher of an MPIJob has no output folder
    for pod in pods(cluster, namespace, run, attempt):
        cluster.kubectl("exec", "-n", namespace, pod["metadata"]["name"], "--", "sh", "-c", touch)


def log_of(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> str:
    """Returns the log of a pod; empty if its container has not started, or the pod is deleted."""
    try:
        return cluster.kubectl("logs", "-n", namespace, pod["metadata"]["name"])
    except subprocess.CalledProcessError:
        return ""
