"""Fixtures for the emulation that stop remaining jobs after a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.sagemaker.twin.jobs import ended

from windlass.engines.sagemaker.service import ENDED
from windlass.engines.sagemaker.twin.job import FOLDERS, NAMESPACES
from windlass.engines.sagemaker.twin.service import FOLDER, Twin

MAY_ISOLATE = os.geteuid() == 0
GRACE_SECONDS = 60.0
"""Grace period in seconds, so long that a container that handles SIGTERM is never killed, even on a busy machine."""


@pytest.fixture(
    params=[
        pytest.param(NAMESPACES, marks=pytest.mark.skipif(not MAY_ISOLATE, reason="needs root")),
        # Without root, this is the only isolation that is tested, so it is not marked slow.
        pytest.param(FOLDERS, marks=[pytest.mark.slow] if MAY_ISOLATE else []),
    ]
)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yields a folder of records; jobs that still run at the end of the test are stopped with a short grace period."""
    yield tmp_path
    twin = Twin(tmp_path, os.environ)
    for job in (tmp_path / FOLDER).glob("[!.]*"):
        if twin.describe(job.name)["TrainingJobStatus"] not in ENDED:
            twin.stop(job.name)
            ended(twin, job.name)


@pytest.fixture
def twin(home: Path, isolation: str) -> Twin:
    return Twin(home, os.environ, grace_seconds=GRACE_SECONDS, isolation=isolation)
