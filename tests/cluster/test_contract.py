"""The contract that every engine passes, on a real cluster: each way to make pods is a class.

What a case needs of this machine alone, such as processes that it can look at, a cluster does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from tests.cluster.bed.cluster import Cluster
from tests.cluster.labs import ADDED, CAN, OPERATORS, claimed, lab_on
from tests.engines.contract import Contract
from tests.engines.lab import Lab, Way

from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.plan.plan import Plan


@pytest.mark.timeout(900)
class OnCluster(Contract):
    """All cases, in a namespace of their own; `via` is the way."""

    via: str
    fields: ClassVar[dict[str, Any]] = {}
    """Of all jobs of this way, beside it."""

    @pytest.fixture(scope="class")
    @classmethod
    def lab(
        cls, cluster: Cluster, operator: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Lab]:
        if cls.via in OPERATORS:
            operator(OPERATORS[cls.via])
        with cluster.namespace(f"contract-{cls.via}") as namespace:
            here = {"via": cls.via, **claimed(cluster, namespace)}
            lab = lab_on(cluster, namespace, tmp_path_factory.mktemp("home"), kubernetes=here, **cls.fields)
            yield lab
            lab.close()


def way(via: str) -> Way:
    """What a way can is asked before there is a cluster; it is the fixture's way that makes plans."""
    return Way(f"kubernetes {via}", KubernetesEngine, lambda *_: _never(), CAN, {}, adds=ADDED, is_variant=via != "job")


def _never() -> Plan:
    raise AssertionError("the plan is made by the fixture's way")


class TestJob(OnCluster):
    via = "job"
    way = way("job")


class TestJobset(OnCluster):
    via = "jobset"
    way = way("jobset")


@pytest.mark.operators
class TestTrainjob(OnCluster):
    via = "trainjob"
    way = way("trainjob")


@pytest.mark.operators
class TestPytorchjob(OnCluster):
    via = "pytorchjob"
    way = way("pytorchjob")


@pytest.mark.operators
class TestMpijob(OnCluster):
    """Ranks of mpirun: it starts them in each pod, and each has all that it has under the other ways."""

    via = "mpijob"
    way = way("mpijob")
    fields: ClassVar[dict[str, Any]] = {"launcher": "mpi"}
