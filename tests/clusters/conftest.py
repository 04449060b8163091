"""Fixture of a cluster in an empty home folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.clusters.find import ManagedCluster
from windlass.clusters.terraform.folder import ClusterFolder
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\nstate: {bucket: states}\n"


@pytest.fixture
def named(tmp_path: Path) -> ManagedCluster:
    """Returns a cluster in an empty home folder."""
    folder = ClusterFolder.of(tmp_path / "home", "vision")
    folder.path.mkdir(parents=True)
    return ManagedCluster(parse_cluster(TEXT), TEXT, folder)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({"WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)
