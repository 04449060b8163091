"""Fixtures that shorten pauses for the tests of runs with a supervisor in the cluster."""

from __future__ import annotations

import pytest

from windlass.engines.kubernetes.access import absence
from windlass.engines.kubernetes.running import markers
from windlass.engines.kubernetes.supervisor import runs, updates


@pytest.fixture(autouse=True)
def _known_to_be_removed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the seconds until a missing object counts as removed, which `test_client.py` tests with a fake clock."""
    for module in (absence, updates, markers):
        monkeypatch.setattr(module, "ABSENT_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def _read_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(runs, "ENDED_REFRESH_SECONDS", 0.0)
