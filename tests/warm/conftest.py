"""Labs that run the same script cold and warm, and a pool of warm processes that is ended with its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.lab import Lab
from tests.warm.forks import Forks, lab_in

from windlass.engines.local.warm import WarmPool


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = lab_in(tmp_path_factory.mktemp("cold"), "cold")
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = lab_in(tmp_path_factory.mktemp("warm"), "warm")
    yield lab
    lab.close()
    WarmPool(lab.home).stop()


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    made = Forks(tmp_path)
    yield made
    made.close()
