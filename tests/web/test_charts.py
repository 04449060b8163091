"""Curves are bounded and mark restarts; the heat map shows the straggler; runs are compared side by side."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.web.page import Page, page_over
from tests.web.records import HOSTILE, many_runs, write_metrics, write_step_seconds

from windlass.runs.metrics import FILE, MetricsFile, Series
from windlass.runs.store import Store
from windlass.web.charts import curve_of, heat_map_of, series_named


def series(rank: int, values: list[float], name: str = "step_seconds") -> Series:
    times = tuple(1000.0 + 5 * at for at in range(len(values)))
    return Series(name, "node", rank, (1,) * len(values), (None,) * len(values), times, tuple(values))


def test_curve_keeps_extremes_and_marks_restarts() -> None:
    values = [1.0] * 10_000
    values[5_000] = 9.0
    steps, times = tuple(range(10_000)), tuple(map(float, range(10_000)))
    one = Series("loss", "report", 0, (1,) * 6_000 + (2,) * 4_000, steps, times, tuple(values))
    curve = curve_of("digits-1", one, 500, began_at=-10.0)
    assert len(curve.values) <= 2 * 500
    assert max(value for value in curve.values if isinstance(value, float)) == 9.0
    [restart] = curve.restarts
    assert curve.steps[restart] == 6_000
    assert curve.times[0] == 10.0
    assert curve.points == 10_000


def test_values_that_json_lacks_are_text() -> None:
    curve = curve_of("digits-1", series(0, [1.0, math.nan, math.inf]), 10, 0.0)
    assert curve.values == (1.0, "nan", "inf")


def test_values_that_are_not_finite_are_counted_before_downsampling() -> None:
    curve = curve_of("digits-1", series(0, [1.0] * 5_000 + [math.nan] * 10_000), 500, 0.0)
    assert (curve.points, curve.not_finite) == (15_000, 10_000)
    assert curve.values[-1] == "nan"


def test_straggler_has_a_row_among_a_thousand_ranks() -> None:
    found = heat_map_of("big-1", [series(rank, [0.3 if rank == 17 else 0.1] * 40) for rank in range(1_000)])
    assert found.slowest == 17
    assert len(found.rows) == 64
    assert 17 in [row.rank for row in found.rows]
    assert found.rows[-1].label == "937 other ranks"
    assert (found.median, found.fastest) == (0.1, 0.1)
    assert found.highest == 0.3


def test_equal_ranks_have_no_straggler() -> None:
    assert heat_map_of("big-1", [series(rank, [0.1] * 4) for rank in range(4)]).slowest is None
    assert heat_map_of("big-1", [series(0, [0.1])]).slowest is None


def test_series_without_finite_values_gives_an_empty_heat_map() -> None:
    assert heat_map_of("big-1", [series(0, [math.nan, math.inf])]).rows == ()
    assert heat_map_of("big-1", []).rows == ()


def test_metric_of_a_run_is_found_by_its_name_alone(tmp_path: Path) -> None:
    write_metrics(tmp_path, ranks=1, steps=20, names=("loss", 'odd "name"'))
    assert [one.name for one in series_named(tmp_path / FILE, 'odd "name"')] == ['odd "name"']
    assert series_named(tmp_path / "none", "loss") == ()


@pytest.mark.parametrize("name", ["rank", "report", "values"])
def test_metric_named_as_a_field_of_the_file_has_no_other_curves(tmp_path: Path, name: str) -> None:
    write_metrics(tmp_path, ranks=1, steps=20, names=("loss", "acc", name))
    assert [one.name for one in series_named(tmp_path / FILE, name)] == [name]


def test_run_of_another_version_does_not_hinder_a_comparison(page: Page) -> None:
    with Store(page.home) as store, store._transaction():
        columns = "created_at, ended_at, phase, status, plan"
        store._db.execute(f"INSERT INTO runs (id, version, {columns}) SELECT 'newer-1', 999, {columns} FROM runs")
    query = f"run=newer-1&run={page.run_id}"
    found = page.client.get(f"/compare.json?{query}").json()
    assert ([run["id"] for run in found["runs"]], found["missing"]) == ([page.run_id], ["newer-1"])
    assert page.client.get(f"/compare/metrics.json?{query}&name=loss").status_code == 200


def test_run_has_one_curve_in_a_comparison(page: Page) -> None:
    with Store(page.home) as store:
        write_step_seconds(store.run_dir(page.run_id), ranks=1_000)
    query = f"/compare/metrics.json?run={page.run_id}&name=step_seconds"
    assert len(page.client.get(query).json()["curves"]) == 1


def test_damaged_lines_of_metrics_are_skipped(page: Page) -> None:
    with Store(page.home) as store, open(store.run_dir(page.run_id) / FILE, "ab") as file:
        file.write(b'{"name":"loss"\n\xff\xfe\n[]\n{"name":"loss","values":[[]]}\n' + b"[" * 100_000)
    found = page.client.get(f"/runs/{page.run_id}/metrics.json", params={"name": "loss"})
    assert found.status_code == 200
    assert len(found.json()["curves"]) == 2


def test_names_begin_with_the_loss(page: Page) -> None:
    found = page.client.get(f"/runs/{page.run_id}/metrics.json").json()
    assert found["names"][0] == {"name": "loss", "source": "report", "ranks": [0, 1]}
    assert found["curves"] == []


def test_settings_that_differ_are_rows_of_text(tmp_path: Path) -> None:
    many_runs(tmp_path, 6)
    with page_over(tmp_path, "digits-00000") as page:
        found = page.client.get("/compare.json?run=digits-00000&run=digits-00005").json()["settings"]
    rows = {(row["kind"], row["name"]): row["values"] for row in found}
    assert set(rows) == {("env", "LR")}
    assert len(set(rows["env", "LR"])) == 2


def test_runs_are_compared_up_to_the_limit(page: Page) -> None:
    several = "&".join(f"run=run-{at}" for at in range(201))
    assert page.client.get(f"/compare.json?{several}").status_code == 400
    found = page.client.get(f"/compare.json?run={page.run_id}&run={page.run_id}&run=none").json()
    assert ([run["id"] for run in found["runs"]], found["missing"]) == ([page.run_id], ["none"])
    curves = page.client.get(f"/compare/metrics.json?run={page.run_id}&run=none&name=loss").json()["curves"]
    assert [(curve["run"], curve["rank"]) for curve in curves] == [(page.run_id, 0)]


def test_comparison_offers_the_metrics_of_a_thinned_file_and_rare_ones(page: Page) -> None:
    with Store(page.home) as store:
        file = MetricsFile(store.run_dir(page.run_id))
        columns = {name: [float(at) for at in range(30_000)] for name in ("steps", "times", "values")}
        file.append(
            1, 0, 2, [{"rank": 0, "source": "report", "name": 'eval "x"', "steps": [1], "times": [1], "values": [1]}]
        )
        for seq, name in enumerate(("lr", "loss"), 3):
            file.append(1, 0, seq, [{"rank": 0, "source": "report", "name": name, **columns}])
    for _ in range(2):
        found = page.client.get(f"/compare.json?run={page.run_id}").json()
        assert found["names"] == ["loss", f"acc {HOSTILE}", 'eval "x"', "lr"]
        file.thin(20_000)
