"""The interval of `Checkpoint` is written as in a job file."""

from __future__ import annotations

import pytest

from windlass.spec.units import parse_duration
from windlass.train.checkpoint.settings import settle


@pytest.mark.parametrize(
    "text",
    ["500ms", "30", "30s", "2 sec", "2secs", "5m", "5min", "5 mins", "1.5h", "1hour", "2hours", "1d", "2 days", "90MS"],
)
def test_interval_has_the_same_format_as_in_a_job_file(text: str) -> None:
    assert settle(None, text, None, text, "skip", {}).every_seconds == pytest.approx(parse_duration(text))
    assert settle(None, text, None, text, "skip", {}).keep_for_seconds == pytest.approx(parse_duration(text))


@pytest.mark.parametrize("text", ["5 lightyears", "-1s", "0ms", ""])
def test_value_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"takes a time such as '30s', '5min' or '2h'"):
        settle(None, 1, None, text, "skip", {})
