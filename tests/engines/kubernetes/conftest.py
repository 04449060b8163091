"""What the tests of the Kubernetes engine share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer

from windlass.engines.kubernetes.access.client import Client


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    """An API server that keeps objects, without a cluster behind it."""
    with closing(ObjectServer()) as server:
        yield server


@pytest.fixture
def client(server: ObjectServer, tmp_path: Path) -> Iterator[Client]:
    """Of namespace `team` there."""
    with closing(server.client(tmp_path)) as client:
        yield client
