"""What the tests of the Kubernetes engine share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    """An API server that keeps objects, without a cluster behind it."""
    with closing(ObjectServer()) as server:
        yield server
