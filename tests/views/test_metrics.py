"""Metrics of a run: one series is shown for each metric, summaries count every point, and restarts are marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from windlass.errors import UsageError
from windlass.runs.metrics import Series
from windlass.runs.phase import Phase
from windlass.views.metrics import better, chosen, long_columns, named, restarts_of, run_metrics, summary_of


def series(
    values: Sequence[float], *, name: str = "loss", source: str = "report", rank: int = 0, **more: Any
) -> Series:
    count = len(values)
    attempts, steps = more.get("attempts", [1] * count), more.get("steps", range(1, count + 1))
    times = [1e9 + at for at in range(count)]
    return Series(name, source, rank, tuple(attempts), tuple(steps), tuple(times), tuple(values))


def test_sources_are_chosen_in_their_order_and_then_the_lowest_rank() -> None:
    every = [
        series([1], source="log"),
        series([2], source="tensorboard", rank=1),
        series([3], source="tensorboard"),
        series([4], source="csv", name="acc"),
        series([5], source="other", name="acc"),
    ]
    assert [(one.name, one.values) for one in chosen(every)] == [("acc", (4,)), ("loss", (3,))]


def test_measured_series_are_shown_for_every_rank() -> None:
    every = [series([rank], name="step_seconds", source="node", rank=rank) for rank in (2, 0, 1)]
    assert [one.rank for one in chosen(every)] == [0, 1, 2]
    found = run_metrics("digits-1", Phase.TRAINING, [*chosen(every), series([1.0])])
    assert [len(found.metrics), len(found.measured)] == [1, 3]


def test_a_summary_counts_values_that_are_not_finite_and_ignores_them_as_extremes() -> None:
    found = summary_of(series([3.0, math.nan, 1.0, math.inf, 2.0]))
    assert (found.count, found.not_finite) == (5, 2)
    assert found.lowest is not None
    assert found.highest is not None
    assert [found.first.value, found.last.value, found.lowest.value, found.highest.value] == [3.0, 2.0, 1.0, 3.0]
    assert found.best is found.lowest
    assert found.best.step == 3
    empty = summary_of(series([math.nan]))
    assert (empty.lowest, empty.highest, empty.best, empty.last.value) == (None, None, None, "nan")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", "lowest"),
        ("train/box_loss", "lowest"),
        ("eval.WER", "lowest"),
        ("metrics/mAP50(B)", "highest"),
        ("f1", "highest"),
        ("val_accuracy", "highest"),
        ("lr", None),
        ("glossary", None),
        ("reward_loss", None),
    ],
)
def test_which_value_is_the_best_follows_from_words_of_the_name(name: str, expected: str | None) -> None:
    assert better(name) == expected


def test_restarts_have_the_steps_before_and_after() -> None:
    one = series([3, 2, 1, 2, 1], attempts=[1, 1, 1, 2, 2], steps=[1, 2, 3, 2, 3])
    later = series([3, 3], attempts=[1, 2], name="acc", steps=[None, None])
    (found,) = restarts_of([one, later])
    assert (found.attempt, found.previous_step, found.step, found.time) == (2, None, None, 1e9 + 1)
    (found,) = restarts_of([one])
    assert (found.attempt, found.previous_step, found.step, found.time) == (2, 3, 2, 1e9 + 3)


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="digits-1 has no metric 'los'") as refused:
        named([series([1.0]), series([1.0], name="acc")], ["los"], "digits-1")
    assert refused.value.hint == "did you mean loss?; known are loss, acc"
    assert [one.name for one in named([series([1.0]), series([1.0], name="eval/acc")], ["eval/*"], "x")] == ["eval/acc"]
    assert [one.name for one in named([series([1.0], name="[x]")], ["[x]"], "x")] == ["[x]"], "a name is no pattern"


def test_long_columns_have_one_row_for_each_point() -> None:
    found = long_columns([series([1.0, math.nan]), series([2.0], name="acc", rank=3, steps=[None])])
    assert {name: len(column) for name, column in found.items()} == dict.fromkeys(found, 3)
    assert found["metric"] == ["loss", "loss", "acc"]
    assert found["step"] == [1, 2, None]
    assert found["rank"] == [0, 0, 3]
