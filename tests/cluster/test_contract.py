"""The contract that every engine passes, on a real cluster: each way to make pods is a class.

What a case needs of this machine alone, such as processes that it can look at, a cluster does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from tests.cluster.bed.cluster import Cluster
from tests.cluster.harnesses import ADDED, CAN, OPERATORS, claimed, harness_on, set_up
from tests.engines.cases.setup import Setup
from tests.engines.contract import Contract
from tests.engines.harness import Aspect, Can, Harness, Way

from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.plan.plan import Plan

OF_A_KIND = frozenset({Aspect.START, Aspect.OBJECTS})
"""What a kind of workload has of its own; the programs in its pods are those of a Job. That ranks meet is shown by
`test_training.py`.
"""
OF_A_MACHINE = frozenset({Aspect.ENDS, Aspect.SIGNALS, Aspect.OUTPUT})
"""What a supervisor on the user's machine does otherwise than one in the cluster: it runs commands in pods, and keeps
their output."""


@pytest.mark.timeout(900)
class OnCluster(Setup, Contract):
    """All cases, in a namespace of their own; `via` is the way."""

    via: str
    fields: ClassVar[dict[str, Any]] = {}
    """Of all jobs of this way, beside it."""
    is_inside: ClassVar[bool] = False
    """Whether supervisors run in the namespace."""

    @pytest.fixture(scope="class")
    @classmethod
    def harness(
        cls, cluster: Cluster, operator: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Harness]:
        if cls.via in OPERATORS:
            operator(OPERATORS[cls.via])
        name = f"contract-{cls.via}" + ("-inside" if cls.is_inside else "")
        with cluster.namespace(name) as namespace:
            if cls.is_inside:
                set_up(cluster, namespace)
            here = {"via": cls.via, **claimed(cluster, namespace)}
            harness = harness_on(cluster, namespace, tmp_path_factory.mktemp("home"), kubernetes=here, **cls.fields)
            yield harness
            harness.close()


def way(via: str, differs_in: frozenset[Aspect] = OF_A_KIND, can: frozenset[Can] = CAN) -> Way:
    """What a way can is asked before there is a cluster; it is the fixture's way that makes plans."""
    return Way(f"kubernetes {via}", KubernetesEngine, lambda *_: _never(), can, {}, adds=ADDED, differs_in=differs_in)


def _never() -> Plan:
    raise AssertionError("the plan is made by the fixture's way")


class TestJob(OnCluster):
    via = "job"
    way = way("job", OF_A_MACHINE)


class TestInside(OnCluster):
    """The supervisor of each run is a pod of its namespace."""

    via = "job"
    way = way("job, supervised inside", frozenset(Aspect) - {Aspect.PROGRAM}, CAN - {Can.EVERY_LINE})
    is_inside = True


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
    way = way("mpijob", can=CAN - {Can.ANY_LAUNCHER})
    fields: ClassVar[dict[str, Any]] = {"launcher": "mpi"}
