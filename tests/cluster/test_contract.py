"""The contract that every engine passes, on a real cluster: each way to make pods is a class.

What a case needs of this machine alone, such as processes that it can look at, a cluster does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Cluster
from tests.engines.contract import Contract
from tests.engines.lab import Can, Lab, Way

from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.facts import boot_program, read_facts
from windlass.engines.kubernetes.plan import plan
from windlass.plan.plan import Plan
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

CAN = frozenset({Can.SCRIPTS, Can.TORCH, Can.PROGRAMS})
ADDED = ("KUBERNETES_", "HOME", "HOSTNAME", "JOB_COMPLETION_INDEX", "WINDLASS_CODE_DIGEST", "JOBSET_")
"""How the names begin of variables that a cluster gives to every container."""
PATIENCE_SECONDS = 600.0
"""Each pod of several imports torch before its first rank starts, and all pods share the cores of one machine."""


def plan_on(target: KubernetesTarget, kubeconfig: str, job: Job, base: Path, home: Path, run_id: str) -> Plan:
    """The plan of a run on the cluster under test."""
    facts = read_facts(job, target, base=base, environ={"KUBECONFIG": kubeconfig})
    return plan(job, target, facts, run_id, boot_program())


@pytest.mark.timeout(900)
class OnCluster(Contract):
    """All cases, in a namespace of their own; `via` is the way."""

    via: str

    @pytest.fixture(scope="class")
    @classmethod
    def lab(cls, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
        with cluster.namespace(f"contract-{cls.via}") as namespace:
            target = KubernetesTarget(
                name="bed", context=cluster.context, namespace=namespace, image=cluster.image, python=cluster.python
            )
            fields: dict[str, Any] = {"kubernetes": {"via": cls.via}}
            way = Way(
                f"kubernetes {cls.via}", KubernetesEngine, functools.partial(plan_on, target, cluster.kubeconfig), CAN,
                fields, adds=ADDED, patience_seconds=PATIENCE_SECONDS,
            )  # fmt: skip
            lab = Lab(way, tmp_path_factory.mktemp("home"))
            yield lab
            lab.close()

    way = Way("kubernetes", KubernetesEngine, lambda *_: _never(), CAN, {}, adds=ADDED)
    """What a way can is asked before there is a cluster."""


def _never() -> Plan:
    raise AssertionError("the plan is made by the fixture's way")


class TestJob(OnCluster):
    via = "job"


class TestJobset(OnCluster):
    via = "jobset"
