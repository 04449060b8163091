"""Metrics and comparisons from Python."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow
import pytest

import windlass
from windlass.engines.fake import FakeEngine
from windlass.errors import NoSuchRun, UsageError
from windlass.runs.context import Context
from windlass.runs.metrics import MetricsFile
from windlass.runs.store import Store


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}, tmp_path)


def run_with(context: Context, store: Store, run: str, *values: float) -> windlass.Run:
    """Returns an ended run with values of `loss` from two sources."""
    job = windlass.Job(name="digits", run=run)
    made = windlass.run(job, on=FakeEngine(store, lambda _ranks: 0), context=context)
    made.wait(check=False)
    columns = {"steps": list(range(len(values))), "times": list(range(len(values))), "values": list(values)}
    batches = (
        [{"rank": 0, "source": source, "name": "loss", **columns} for source in ("log", "report")] if values else []
    )
    MetricsFile(store.run_dir(made.id)).append(1, 0, 1, batches)
    return made


def test_metrics_are_columns_that_data_frames_accept(context: Context) -> None:
    with Store(context.home) as store:
        run = run_with(context, store, "train.py", 0.5, 0.25)
    table = pyarrow.table(run.metrics())
    assert table.to_pylist()[1] == {
        "metric": "loss", "source": "report", "rank": 0, "attempt": 1, "step": 1.0, "time": 1.0, "value": 0.25,
    }  # fmt: skip
    assert run.metrics("l*", source="log")["source"] == ["log", "log"]
    assert len(run.metrics(every=True)["value"]) == 4
    with pytest.raises(UsageError, match="has no metric 'los'"):
        run.metrics("los")
    run.delete(force=True)
    with pytest.raises(NoSuchRun):
        run.metrics()


def test_a_run_without_metrics_has_empty_columns(context: Context) -> None:
    with Store(context.home) as store:
        run = run_with(context, store, "train.py")
    assert set(map(len, run.metrics().values())) == {0}


def test_runs_are_compared_by_handle_or_id(context: Context) -> None:
    with Store(context.home) as store:
        runs = [run_with(context, store, f"train.py --lr {rate}", rate, rate / 2) for rate in (0.5, 0.25)]
    found = windlass.compare(runs[0], runs[1].id, context=context)
    assert isinstance(found, windlass.Comparison)
    best = [run.metrics["loss"].best for run in found.runs]
    assert [point and point.value for point in best] == [0.25, 0.125]
    assert [(one.name, one.values) for one in found.differences] == [("--lr", ("0.5", "0.25"))]
    with pytest.raises(UsageError, match="at most 200"):
        windlass.compare(*[runs[0]] * 201, context=context)
