"""Fixtures for tests on a cluster: a shared cluster, one that may be broken, and a namespace in either.

`KUBECONFIG` and `WINDLASS_TEST_CONTEXT` name an existing cluster; without them tests start their own, which is bed 0
unless `WINDLASS_TEST_BED` is the index of another one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.operators import ON_DEMAND
from tests.cluster.bed.sharing import alone, borrowed, operating

HERE = Path(__file__).parent
CONTEXT = os.environ.get("WINDLASS_TEST_CONTEXT")
IMAGE = os.environ.get("WINDLASS_TEST_IMAGE", "pytorch/pytorch:2.9.0-cuda13.0-cudnn9-runtime")
"""Image for an existing cluster: contains Python and torch, and runs as a non-root user."""


LEAST_SECONDS = 1200.0
"""Minimum time limit of each test here, in seconds, also if the test sets a lower one: the first tests start
clusters."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("cluster")
            limit = item.get_closest_marker("timeout")
            if limit is None or limit.args[0] < LEAST_SECONDS:
                item.add_marker(pytest.mark.timeout(LEAST_SECONDS), append=False)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Shared cluster; each test uses separate namespaces."""
    if CONTEXT:
        yield _foreign(CONTEXT)
        return
    with borrowed(int(os.environ.get("WINDLASS_TEST_BED", "0"))) as bed:
        yield bed


@pytest.fixture(scope="session")
def bed(cluster: Cluster) -> Bed:
    """Shared test cluster, for tests that read its internals and break nothing."""
    if not isinstance(cluster, Bed):
        pytest.skip("needs the test bed; WINDLASS_TEST_CONTEXT names another cluster")
    return cluster


@pytest.fixture(scope="session")
def ours_to_break() -> None:
    """Skips tests that break their cluster if the cluster is an existing one."""
    if CONTEXT:
        pytest.skip("breaks its cluster; WINDLASS_TEST_CONTEXT names one that is not ours to break")


@pytest.fixture(scope="session")
def lone_bed(ours_to_break: None) -> Iterator[Bed]:
    """Test cluster that no other test uses at the same time; a test that breaks it must repair it."""
    with alone() as bed:
        yield bed


@pytest.fixture(scope="module")
def scaled(lone_bed: Bed) -> Iterator[Bed]:
    """Exclusive test cluster with Karpenter, which would provision nodes for the pods of other tests too."""
    lone_bed.start_operator("karpenter")
    yield lone_bed
    lone_bed.stop_operator("karpenter")


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Installs an operator in the shared cluster, from the first test that requests it to the end of its module."""
    with contextlib.ExitStack() as running:

        @functools.cache
        def start(name: str) -> None:
            if isinstance(cluster, Bed):
                running.enter_context(operating(cluster, name))
            elif not cluster.kubectl("get", "crd", ON_DEMAND[name].kind, "--ignore-not-found"):
                pytest.skip(f"this cluster has no {name}")

        yield start


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Namespace of the shared cluster under pod security `restricted`."""
    with cluster.namespace(_short(request)) as name:
        yield name


@pytest.fixture
def lone_namespace(lone_bed: Bed, request: pytest.FixtureRequest) -> Iterator[str]:
    """Namespace in the exclusive test cluster."""
    with lone_bed.namespace(_short(request)) as name:
        yield name


def _short(request: pytest.FixtureRequest) -> str:
    """Returns a prefix of a test's name that identifies its namespace."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:30].strip("-")


def _foreign(context: str) -> Cluster:
    config = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    program = shutil.which("kubectl")
    if program is None:
        pytest.fail("WINDLASS_TEST_CONTEXT is set, and there is no kubectl in PATH")
    return Cluster(config, context, IMAGE, "python3", program)
