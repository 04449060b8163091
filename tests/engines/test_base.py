"""Operations that an engine inherits: they read the record of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.engines.base import Engine, TargetRuns
from windlass.errors import UsageError
from windlass.runs.context import here
from windlass.runs.metrics import MetricsFile
from windlass.runs.store import Store


class Local(Engine):
    """An engine that inherits every operation."""

    kind = "local"


class Elsewhere(TargetRuns):
    """An engine of runs without a record on this machine."""

    kind = "elsewhere"


def test_metrics_are_read_from_the_folder_of_the_run(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        folder = store.run_dir("digits-1")
        folder.mkdir(parents=True)
        assert Local(store).metrics("digits-1") == ()
        batch = {"rank": 0, "source": "report", "name": "loss", "steps": [1], "times": [1e9], "values": [0.5]}
        MetricsFile(folder).append(1, 0, 1, [batch])
        (found,) = Local(store).metrics("digits-1")
    assert (found.name, found.values) == ("loss", (0.5,))


def test_runs_without_a_record_have_no_metrics_here(tmp_path: Path) -> None:
    with Store(tmp_path) as store, pytest.raises(UsageError, match="metrics is not supported by engine elsewhere"):
        Elsewhere(store, None, here()).metrics("digits-1")
