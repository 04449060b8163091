"""Differences between the data sets of two runs of a job are reported."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from windlass.runs.data import DataDifference, data_differences
from windlass.runs.events import DataStaged
from windlass.runs.store import Store


def run_with(store: Store, run_id: str, at: float, *, name: str = "digits", **digests: str) -> None:
    made = store.create(run_id, name=name, target="local", output_dir="out", plan="{}", time=at)
    assert made is not None
    with closing(made) as writer:
        for data, digest in digests.items():
            writer.append(DataStaged(data, f"s3://bkt/{data}/", digest), at=at)


def test_a_set_differs_from_that_of_the_newest_earlier_run_of_the_job(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run_with(store, "digits-1", 1.0, train="set:aa", test="set:bb")
        run_with(store, "digits-2", 2.0, train="set:cc", test="set:bb")
        run_with(store, "other-1", 3.0, name="other", train="set:dd")
        run_with(store, "digits-3", 4.0)
        run_with(store, "digits-4", 5.0, train="set:aa", test="set:bb", more="set:ee")
        found = {run: data_differences(store.status(run), store) for run in ("digits-1", "digits-2", "digits-4")}
    assert found["digits-1"] == ()
    assert found["digits-2"] == (DataDifference("train", "digits-1", "set:aa"),)
    assert found["digits-4"] == (DataDifference("train", "digits-2", "set:cc"),)
