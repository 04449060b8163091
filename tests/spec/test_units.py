from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.units import (
    MAX_BYTES,
    MAX_SECONDS,
    format_duration,
    format_size,
    parse_duration,
    parse_interval,
    parse_size,
)


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [
        ("30s", 30), ("5min", 300), ("5m", 300), ("2h", 7200), (" 2H ", 7200), ("1h30m", 5400), ("1h 30min", 5400),
        ("500ms", 0.5), ("1.5h", 5400), ("2 days", 172800), ("1 Hour", 3600), ("90", 90), (90, 90), (0.25, 0.25),
        (0, 0),
    ],
)  # fmt: skip
def test_durations_are_seconds(given_: object, seconds: float) -> None:
    assert parse_duration(given_) == seconds


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (math.inf, "finite"),
        (-math.inf, "finite"),
        (math.nan, "finite"),
        (-1, "negative"),
        ("-5min", "negative"),
        ("soon", "expected a duration, found 'soon'"),
        ("", "expected a duration"),
        (True, "found true"),
        (None, "found nothing"),
        ([], "found a list"),
        ("5 parsecs", "parsecs is not a unit of time"),
        ("30s 1h", "falling order"),
        ("1h2h", "falling order"),
        (MAX_SECONDS + 1, "ten years"),
        pytest.param(10**5000, "ten years", id="huge"),
        ("5M", "M is not a unit of time"),
        ("9" * 18 + "d", "ten years"),
        ("9" * 1000, "expected a duration"),
        ("५min", "expected a duration"),
    ],
)
def test_invalid_duration_is_refused_with_a_message(given_: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_duration(given_)


@pytest.mark.parametrize(
    ("given_", "size"),
    [
        ("16GiB", 16 * 2**30),
        ("16Gi", 16 * 2**30),
        ("2GB", 2 * 10**9),
        ("2G", 2 * 10**9),
        ("512Mi", 512 * 2**20),
        ("512mb", 512 * 10**6),
        ("1024", 1024),
        (1024, 1024),
        (1024.0, 1024),
        ("1.5KiB", 1536),
        ("0.1KiB", 103),
        ("7B", 7),
        (0, 0),
    ],
)
def test_sizes_are_bytes(given_: object, size: int) -> None:
    assert parse_size(given_) == size


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (math.inf, "whole number"),
        (math.nan, "whole number"),
        (1.5, "whole number"),
        (-1, "negative"),
        ("-1GiB", "negative"),
        ("2g", "one size to Docker and another to Kubernetes"),
        ("512m", "one size to Docker"),
        ("12 monkeys", "monkeys is not a unit of size"),
        ("GiB", "expected a size"),
        ("", "expected a size"),
        (False, "expected a size, found false"),
        (MAX_BYTES + 1, "at most"),
        pytest.param(10**5000, "at most", id="huge"),
        ("1e9", "expected a size"),
    ],
)
def test_invalid_size_is_refused_with_a_message(given_: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_size(given_)


def test_durations_and_sizes_are_formatted() -> None:
    assert [format_duration(s) for s in (0, 0.25, 1, 90, 7200, 90061, 90.5)] == [
        "0s",
        "250ms",
        "1s",
        "1min 30s",
        "2h",
        "1d 1h 1min 1s",
        "1min 30.5s",
    ]
    assert [format_size(n) for n in (0, 1023, 1024, 16 * 2**30, 1234567)] == ["0B", "1023B", "1KiB", "16GiB", "1.2MiB"]
    assert (format_duration(-90), format_size(-1024), format_duration(math.inf)) == ("-1min 30s", "-1KiB", "inf")


@given(st.integers(0, MAX_SECONDS * 1000))
def test_formatted_duration_parses_back_to_the_millisecond(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.integers(0, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_formatted_whole_size_parses_back(number: int, unit: str) -> None:
    size = parse_size(f"{number}{unit}")
    assert parse_size(format_size(size)) == size


@given(st.one_of(st.text(max_size=80), st.floats(), st.integers(), st.from_regex(r"\A[0-9.]{1,5} ?[a-zA-Z]{0,3}\Z")))
def test_anything_is_a_unit_or_a_value_error(value: object) -> None:
    for parse, most in ((parse_duration, MAX_SECONDS), (parse_size, MAX_BYTES)):
        with contextlib.suppress(ValueError):
            assert 0 <= parse(value) <= most


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("5min", 300.0),
        (30, 30.0),
        ("20 steps", "20 steps"),
        (" 1 step ", "1 steps"),
        ("100   steps", "100 steps"),
        ("100steps", "100 steps"),
        ("1step", "1 steps"),
    ],
)
def test_an_interval_is_a_duration_or_a_number_of_steps(given_: object, expected: float | str) -> None:
    assert parse_interval(given_) == expected


@pytest.mark.parametrize("given_", ["0 steps", "-1 steps", "1.5 steps", "steps", "twenty steps", 0, "0s", "20 epochs"])
def test_invalid_interval_is_refused(given_: object) -> None:
    with pytest.raises(ValueError, match=r"found|more than 0"):
        parse_interval(given_)
