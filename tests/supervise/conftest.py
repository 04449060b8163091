"""Runs for tests of the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.supervise.fakes import FakeRun


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., FakeRun]]:
    """Returns a function that creates runs with a policy; they are closed after the test."""
    made: list[FakeRun] = []

    def make(**policy: Any) -> FakeRun:
        made.append(FakeRun(tmp_path / f"home-{len(made)}", **policy))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.fixture
def run(make_run: Callable[..., FakeRun]) -> FakeRun:
    """Creates a run of one rank."""
    return make_run()
