"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import pytest
from tests.helpers.clock import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock(0.0)
    monkeypatch.setattr("windlass.train.checkpoint.retry.time", made)
    return made
