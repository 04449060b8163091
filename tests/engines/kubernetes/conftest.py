"""Fixtures that the tests of the Kubernetes engine share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer

from windlass.engines.kubernetes.access.client import Client


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    """Yields an API server that stores objects, without controllers."""
    with closing(ObjectServer()) as server:
        yield server


@pytest.fixture
def client(server: ObjectServer, tmp_path: Path) -> Iterator[Client]:
    """Yields a client of the server for namespace `team`."""
    with closing(server.client(tmp_path)) as client:
        yield client
