"""Twins whose jobs leave nothing running after a test."""

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
"""So long that a container which ends at SIGTERM is never killed, on a busy machine either."""


@pytest.fixture(
    params=[
        pytest.param(NAMESPACES, marks=pytest.mark.skipif(not MAY_ISOLATE, reason="needs root")),
        # Where the first is left out, it is the one that shows how jobs go.
        pytest.param(FOLDERS, marks=[pytest.mark.slow] if MAY_ISOLATE else []),
    ]
)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder of records; what runs in it at the end of the test is stopped without patience."""
    yield tmp_path
    twin = Twin(tmp_path, os.environ)
    for job in (tmp_path / FOLDER).glob("[!.]*"):
        if twin.describe(job.name)["TrainingJobStatus"] not in ENDED:
            twin.stop(job.name)
            ended(twin, job.name)


@pytest.fixture
def twin(home: Path, isolation: str) -> Twin:
    return Twin(home, os.environ, grace_seconds=GRACE_SECONDS, isolation=isolation)
