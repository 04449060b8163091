"""Fixtures for tests of pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.worker.pod_process import Pod


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    """Returns a list for the pods of a test, which are killed at its end."""
    made: list[Pod] = []
    yield made
    for one in made:
        one.process.kill()
        one.process.wait()
