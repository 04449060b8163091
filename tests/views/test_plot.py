"""Scales of plots: lines end at restarts and at values that cannot be drawn, and ticks are round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windlass.errors import UsageError
from windlass.runs.metrics import Series
from windlass.views.plot import Axis, PlottedSeries, plot_of
from windlass.views.svg import to_svg


def plotted(values: Sequence[float], run_id: str = "digits-1", start: float = 1e9, **columns: Any) -> PlottedSeries:
    count = len(values)
    attempts, steps = columns.get("attempts", [1] * count), columns.get("steps", range(count))
    times = columns.get("times", [start + at for at in range(count)])
    return PlottedSeries(
        run_id, run_id, Series("loss", "report", 0, tuple(attempts), tuple(steps), tuple(times), tuple(values))
    )


def test_a_restart_and_a_value_that_is_not_finite_end_a_line() -> None:
    found = plot_of([plotted([3, math.nan, 1, 2], attempts=[1, 1, 1, 2], steps=[1, 2, 3, 2])])
    assert found.curves[0].lines == (((1, 3),), ((3, 1),), ((2, 2),))
    assert found.restarts == (2,)


def test_time_begins_at_the_first_point_of_each_run_in_a_fitting_unit() -> None:
    found = plot_of([plotted([1, 2], times=[0, 600]), plotted([1, 2], "other", times=[9000, 9300])], x="time")
    assert found.x.title == "time (min)"
    assert [curve.lines[0][1][0] for curve in found.curves] == [10, 5]


def test_a_logarithmic_axis_leaves_out_values_that_are_not_positive() -> None:
    found = plot_of([plotted([100, 0, 1])], is_log=True)
    assert found.curves[0].lines == (((0, 100),), ((2, 1),))
    assert list(found.y.ticks(5).values()) == ["1", "10", "100"]
    assert found.y.position(10) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("values", "options", "hint"),
    [
        ([math.nan], {}, "no value is finite"),
        ([-1.0], {"is_log": True}, "a logarithmic axis has only values above 0"),
    ],
)
def test_a_plot_without_points_is_refused(values: list[float], options: Any, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        plot_of([plotted(values)], **options)
    assert refused.value.hint == hint


def test_values_without_steps_are_drawn_over_time_alone() -> None:
    with pytest.raises(UsageError) as refused:
        plot_of([plotted([1.0, 2.0], steps=[None, None])])
    assert refused.value.hint == "the values have no steps: --x time"
    assert plot_of([plotted([1.0, 2.0], steps=[None, None])], x="time").x.high == 1


def test_ticks_are_round_numbers_within_the_axis() -> None:
    assert list(Axis("", 0.03, 0.71).ticks(5).values()) == ["0.2", "0.4", "0.6"]
    assert list(Axis("", 0, 1000).ticks(5).values()) == ["0", "200", "400", "600", "800", "1000"]
    assert list(Axis("", 1.000001, 1.000003).ticks(4).values()) == [
        "1.000001",
        "1.0000015",
        "1.000002",
        "1.0000025",
        "1.000003",
    ]


@example([5e-324], True)
@given(st.lists(st.floats(), min_size=1, max_size=8), st.booleans())
def test_any_values_are_drawn_or_refused(values: list[float], is_log: bool) -> None:
    try:
        found = plot_of([plotted(values)], is_log=is_log)
    except UsageError:
        return
    assert all(0 <= found.y.position(y) <= 1 for line in found.curves[0].lines for _, y in line)
    assert len(found.y.ticks(5)) <= 8
    assert "nan" not in to_svg(found)
