"""What the tests on a cluster are given: a shared one, one to break, and a namespace in either.

`KUBECONFIG` and `WINDLASS_TEST_CONTEXT` name an existing cluster; without them tests bring up their own, which is bed 0
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
"""For a cluster that is not ours: what has Python and torch, and runs as a user that is not root."""


LEAST_SECONDS = 1200.0
"""Of the time limit of each test here, also of one that names a lower one: the first tests bring up beds too."""


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
    """A cluster that tests share: each stays in namespaces of its own."""
    if CONTEXT:
        yield _foreign(CONTEXT)
        return
    with borrowed(int(os.environ.get("WINDLASS_TEST_BED", "0"))) as bed:
        yield bed


@pytest.fixture(scope="session")
def bed(cluster: Cluster) -> Bed:
    """The shared cluster, for a test that reads what only a bed shows, and breaks nothing."""
    if not isinstance(cluster, Bed):
        pytest.skip("needs the test bed; WINDLASS_TEST_CONTEXT names another cluster")
    return cluster


@pytest.fixture(scope="session")
def ours_to_break() -> None:
    """Skip a test that breaks its cluster on an existing cluster."""
    if CONTEXT:
        pytest.skip("breaks its cluster; WINDLASS_TEST_CONTEXT names one that is not ours to break")


@pytest.fixture(scope="session")
def lone_bed(ours_to_break: None) -> Iterator[Bed]:
    """A bed that no other test uses at the same time; who breaks it mends it."""
    with alone() as bed:
        yield bed


@pytest.fixture(scope="module")
def scaled(lone_bed: Bed) -> Iterator[Bed]:
    """A bed with Karpenter, for oneself: it would make nodes for the pods of all others too."""
    lone_bed.start_operator("karpenter")
    yield lone_bed
    lone_bed.stop_operator("karpenter")


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Has an operator run in the shared cluster from the first test that asks for it to the end of its module."""
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
    """A namespace of the shared cluster under pod security `restricted`."""
    with cluster.namespace(_short(request)) as name:
        yield name


@pytest.fixture
def lone_namespace(lone_bed: Bed, request: pytest.FixtureRequest) -> Iterator[str]:
    """The same in the bed that may be broken."""
    with lone_bed.namespace(_short(request)) as name:
        yield name


def _short(request: pytest.FixtureRequest) -> str:
    """Enough of a test's name to tell whose namespace it is."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:30].strip("-")


def _foreign(context: str) -> Cluster:
    config = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    program = shutil.which("kubectl")
    if program is None:
        pytest.fail("WINDLASS_TEST_CONTEXT is set, and there is no kubectl in PATH")
    return Cluster(config, context, IMAGE, "python3", program)
