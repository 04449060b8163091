"""The engine contract holds on a real cluster; each class tests one workload kind.

Cases that need the processes of this machine do not apply to a cluster.
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
"""Aspects that differ between workload kinds; the programs in their pods are those of a Job. `test_training.py` shows
that ranks rendezvous."""
OF_A_MACHINE = frozenset({Aspect.ENDS, Aspect.SIGNALS, Aspect.OUTPUT})
"""Aspects in which a supervisor on the user's machine differs from one in the cluster: it runs commands in pods, and
stores their output."""


@pytest.mark.timeout(900)
class OnCluster(Setup, Contract):
    """All cases, in a separate namespace; `via` is the workload kind."""

    via: str
    fields: ClassVar[dict[str, Any]] = {}
    """Further fields of all jobs."""
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
    """Returns a way for case selection, before the cluster exists; plans are created by the fixture's way."""
    return Way(f"kubernetes {via}", KubernetesEngine, lambda *_: _never(), can, {}, adds=ADDED, differs_in=differs_in)


def _never() -> Plan:
    raise AssertionError("the plan is made by the fixture's way")


class TestJob(OnCluster):
    via = "job"
    way = way("job", OF_A_MACHINE)


class TestInside(OnCluster):
    """Contract with the supervisor of each run in a pod of its namespace."""

    via = "job"
    way = way("job, supervised inside", OF_A_KIND | OF_A_MACHINE, CAN - {Can.EVERY_LINE})
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
    """Contract for ranks started by mpirun in each pod, which get the same environment as with other kinds."""

    via = "mpijob"
    way = way("mpijob", can=CAN - {Can.ANY_LAUNCHER})
    fields: ClassVar[dict[str, Any]] = {"launcher": "mpi"}
