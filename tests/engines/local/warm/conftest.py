"""Harnesses that run the same script cold and warm, and a pool of warm processes that ends with its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.harness import Harness
from tests.engines.local.warm.forks import Forks, harness_in

from windlass.engines.local.warm_pool import WarmPool


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = harness_in(tmp_path_factory.mktemp("cold"), "cold")
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = harness_in(tmp_path_factory.mktemp("warm"), "warm")
    yield harness
    harness.close()
    WarmPool(harness.home).stop()


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    made = Forks(tmp_path)
    yield made
    made.close()
