"""Fixtures for runs against an emulated control plane, which the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engines.harness import Harness
from tests.engines.sagemaker.emulated import emulated
from tests.fakeaws.control_plane import ControlPlane


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Harness, ControlPlane]]:
    with emulated(tmp_path_factory.mktemp("aws")) as made:
        yield made


@pytest.fixture
def harness(world: tuple[Harness, ControlPlane]) -> Harness:
    return world[0]
