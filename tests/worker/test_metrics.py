"""Points of metrics are handed over in bounded events, each point once."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from windlass.worker.metrics import (
    FULL_POINTS,
    MAX_EVENT_BYTES,
    MAX_LATE_SECONDS,
    MAX_POINTS,
    MAX_SERIES,
    MetricPoints,
    thinned,
)
from windlass.worker.protocol import MetricsReported

NOW = 1_790_000_000.0


def take(points: MetricPoints, at: float, *, at_once: bool = False) -> list[MetricsReported]:
    return points.take(at, at - NOW, at_once=at_once)


def batches(events: list[MetricsReported]) -> list[dict[str, Any]]:
    return [dict(one) for event in events for one in event.series]


def test_points_are_handed_over_at_once_and_then_every_two_seconds() -> None:
    points = MetricPoints(1)
    assert points.due(0) == math.inf
    points.add(0, "report", "loss", 1, NOW, 0.5)
    assert points.due(0) <= 0
    [event] = take(points, NOW)
    batch = {"rank": 0, "source": "report", "name": "loss", "steps": [1], "times": [NOW], "values": [0.5]}
    assert (event.seq, event.at, event.series) == (1, NOW, (batch,))
    points.add(0, "report", "loss", 2, NOW + 1, float("nan"))
    assert points.due(1) == 1.0
    assert take(points, NOW + 1) == []
    [event] = take(points, NOW + 2)
    assert (event.seq, event.series[0]["values"]) == (2, ["nan"])
    assert take(points, NOW + 10) == []


@pytest.mark.parametrize("step", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_finite_is_no_step(step: float) -> None:
    points = MetricPoints(1)
    points.add(0, "csv", "loss", 1, NOW, 0.5)
    points.add(0, "csv", "loss", step, NOW, 0.25)
    [batch] = batches(take(points, NOW))
    assert (batch["steps"], batch["values"]) == ([1, None], [0.5, 0.25])


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_that_is_set_changes_no_mean_and_holds_no_points_back(jump: int) -> None:
    points, found = MetricPoints(1), []
    for second in range(30):
        at = NOW + second + (jump if second >= 12 else 0)
        points.add_step(0, 10 * second, at, second)
        found += batches(points.take(at, second))
    assert [value for batch in found for value in batch["values"]] == [0.1] * 5


def test_events_have_at_most_8_kib_and_lose_no_point() -> None:
    points = MetricPoints(1)
    for name in range(30):
        for step in range(MAX_POINTS):
            points.add(0, "report", f"metric/{name}", step + 10**9, NOW + step / 7, -0.123456789e-100)
    points.add(0, "csv", "\x00" * 100_000, None, NOW, 1)
    events = take(points, NOW)
    assert max(len(json.dumps(event.to_json())) for event in events) <= MAX_EVENT_BYTES
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    found: dict[object, list[object]] = {}
    for batch in batches(events):
        found.setdefault(batch["name"], []).extend(batch["steps"])
    steps = [step + 10**9 for step in range(MAX_POINTS)]
    assert [found[f"metric/{name}"] for name in range(30)] == [steps] * 30
    assert len(found) == 31


def test_long_names_that_differ_at_their_ends_are_two_series() -> None:
    points = MetricPoints(1)
    names = {f"{'layer/' * 32}{last}" for last in "ab"}
    for name in names:
        points.add(0, "tensorboard", name, 1, NOW, 0.5)
    assert {batch["name"] for batch in batches(take(points, NOW))} == names


def test_many_points_are_thinned_to_their_extremes() -> None:
    points = MetricPoints(1)
    for step in range(100_000):
        odd: dict[int, float | str] = {777: 10**400, 55_555: -99.0, 3_333: "nan"}
        value = odd.get(step, step % 7)
        points.add(0, "report", "loss", step, NOW, value)
    [values] = [batch["values"] for batch in batches(take(points, NOW))]
    assert len(values) <= 1.25 * MAX_POINTS
    assert {10**400, -99.0, "nan"} <= set(values)
    few = [(step, NOW, step) for step in range(10)]
    assert thinned([*few], 10) == few


def test_a_long_series_has_few_points_and_its_newest_is_at_most_a_minute_old() -> None:
    points, taken, step = MetricPoints(1), 0, 0
    for second in range(0, 43_200, 4):
        for _ in range(20):
            step += 1
            points.add(0, "report", "loss", step, NOW + second, 1 / step)
        found = batches(take(points, NOW + second))
        taken += sum(len(batch["values"]) for batch in found)
        if found:
            newest = second
        assert second - newest <= MAX_LATE_SECONDS + 4
    assert FULL_POINTS < taken < 3 * FULL_POINTS


def test_with_many_ranks_only_rank_0_and_the_step_times_of_all_are_kept() -> None:
    for world_size, others in ((16, {"report", "node"}), (17, {"node"})):
        points = MetricPoints(world_size)
        for rank in (0, 9):
            points.add(rank, "report", "loss", 1, NOW, 0.5)
            points.add(rank, "node", "step_seconds", 1, NOW, 0.5)
        found = batches(take(points, NOW))
        assert {one["source"] for one in found if one["rank"] == 9} == others
        assert {one["source"] for one in found if one["rank"] == 0} == {"report", "node"}


def test_number_of_series_is_bounded() -> None:
    points = MetricPoints(1)
    for number in range(2 * MAX_SERIES):
        points.add(0, "csv", f"column {number}", 1, NOW, 0.5)
    assert len(batches(take(points, NOW))) == MAX_SERIES


def test_step_seconds_is_the_mean_over_windows_that_grow_with_the_age() -> None:
    points, num_points = MetricPoints(2), 0
    for second in range(0, 7 * 86400, 5):
        points.add_step(1, second * 4, NOW + second, second)
        if second % 600 == 0:
            found = batches(take(points, NOW + second))
            assert {value for batch in found for value in batch["values"]} <= {0.25}
            num_points += sum(len(batch["values"]) for batch in found)
    assert 200 < num_points < 1000


def test_steps_of_a_new_epoch_begin_a_new_window() -> None:
    points = MetricPoints(1)
    for second, step in ((0, 10), (4, 20), (5, 1), (9, 3), (11, 4)):
        points.add_step(0, step, NOW + second, second)
    assert [(batch["steps"], batch["values"]) for batch in batches(take(points, NOW))] == [([4], [2.0])]


def test_a_short_attempt_has_one_mean_of_seconds_per_step() -> None:
    points = MetricPoints(1)
    points.add_step(0, 1, NOW, 0)
    points.add_step(0, 5, NOW + 1, 1)
    assert take(points, NOW + 1) == []
    [batch] = batches(take(points, NOW + 1, at_once=True))
    assert (batch["name"], batch["source"], batch["values"]) == ("step_seconds", "node", [0.25])


def test_a_node_with_many_series_reports_little_after_its_first_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.worker.metrics.FULL_POINTS_OF_NODE", 20_000)
    points, num_series = MetricPoints(16), 320

    def add(at: float, count: int) -> list[MetricsReported]:
        for rank, name in itertools.product(range(16), range(num_series // 16)):
            for step in range(count):
                points.add(rank, "report", f"metric/{name}", step, at + step / count, step / 7)
        return take(points, at + 1)

    add(NOW, MAX_POINTS)
    half_hour = [event for minute in range(30, 60) for event in add(NOW + 60 * minute, 12)]
    assert 0 < sum(len(json.dumps(event.to_json())) for event in half_hour) < 1 << 20
