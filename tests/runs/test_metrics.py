"""The file of a run's metrics: points are kept once, damaged lines are skipped, and thinning keeps the extremes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from windlass.runs.metrics import FILE, MAX_SERIES, MetricsFile, MetricsReader, Series, read_metrics, thin, thinned


def batch(values: list[Any], *, name: str = "loss", start: int = 0) -> dict[str, Any]:
    steps = list(range(start, start + len(values)))
    return {
        "rank": 0,
        "source": "report",
        "name": name,
        "steps": steps,
        "times": [1e9 + step for step in steps],
        "values": values,
    }


def series(values: list[float], attempts: list[int] | None = None) -> Series:
    count = len(values)
    return Series(
        "loss", "report", 0, tuple(attempts or [1] * count), tuple(range(count)), tuple(range(count)), tuple(values)
    )


def test_points_of_several_batches_form_one_series(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.append(1, 0, 1, [batch([3.0, 2.0])])
    file.append(1, 0, 2, [batch(["nan"], start=2)])
    file.append(2, 0, 1, [batch([1.0], start=1)])
    (found,) = read_metrics(file.path)
    assert (found.key, found.attempts, found.steps) == (("loss", "report", 0), (1, 1, 1, 2), (0, 1, 2, 1))
    assert found.values[:2] == (3.0, 2.0)
    assert math.isnan(found.values[2])


def test_a_batch_that_is_read_again_adds_nothing(tmp_path: Path) -> None:
    MetricsFile(tmp_path).append(1, 0, 1, [batch([3.0])])
    later = MetricsFile(tmp_path)
    later.append(1, 0, 1, [batch([3.0])])
    later.append(1, 1, 1, [batch([5.0], name="other")])
    assert [len(one) for one in read_metrics(later.path)] == [1, 1]


def test_a_line_cut_by_a_crash_loses_only_itself(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.append(1, 0, 1, [batch([3.0])])
    with file.path.open("ab") as opened:
        opened.write(b'{"attempt":1,"node":0,"seq":2,"ra')
    MetricsFile(tmp_path).append(1, 0, 2, [batch([2.0], start=1)])
    (found,) = read_metrics(file.path)
    assert found.values == (3.0, 2.0)


def test_hostile_lines_are_skipped(tmp_path: Path) -> None:
    good = {"attempt": 1, "node": 0, "seq": 1, **batch([1.0])}
    bad = [
        {**good, "values": [1.0, 2.0]},
        {**good, "values": ["<script>"]},
        {**good, "values": [{}]},
        {**good, "times": [None]},
        {**good, "times": [math.nan]},
        {**good, "steps": [1e999]},
        {**good, "rank": 1 << 40},
        {**good, "attempt": -1},
        {**good, "name": "x" * 2000},
        {**good, "name": 3},
        *({**good, "source": source} for source in ("../../elsewhere", "/tmp/elsewhere", "report\nlog", "x" * 21)),
        [],
        "text",
    ]
    lines = [json.dumps(one) for one in [*bad, good]]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\xff\xfe\n" + b"[" * 100_000 + b"\n" + "\n".join(lines).encode())
    (found,) = read_metrics(path)
    assert found.values == (1.0,)


def test_the_number_of_series_is_bounded(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.append(1, 0, 1, [batch([1.0], name=f"m{number}") for number in range(MAX_SERIES + 5)])
    assert len(read_metrics(file.path)) == MAX_SERIES


def test_a_thinned_file_takes_further_points_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.append(1, 0, 7, [batch([float(number % 10) for number in range(1000)])])
    file.thin(100)
    (found,) = read_metrics(file.path)
    assert len(found) <= 125
    again = MetricsFile(tmp_path)
    again.append(1, 0, 7, [batch([1.0])])
    again.append(1, 0, 8, [batch([77.0], start=1000)])
    (after,) = read_metrics(file.path)
    assert after.values == (*found.values, 77.0)


def test_a_batch_cannot_change_its_number(tmp_path: Path) -> None:
    MetricsFile(tmp_path).append(1, 0, 1, [{**batch([3.0]), "seq": 99, "attempt": 7}])
    later = MetricsFile(tmp_path)
    later.append(1, 0, 2, [batch([2.0], start=1)])
    (found,) = read_metrics(later.path)
    assert (found.values, found.attempts) == ((3.0, 2.0), (1, 1))


def test_a_file_with_a_lower_limit_is_thinned_to_it(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, max_bytes=4000, max_points=40)
    for seq in range(1, 41):
        file.append(1, 0, seq, [batch([float(seq)] * 10, start=10 * seq)])
    (found,) = read_metrics(file.path)
    assert file.path.stat().st_size < 5000
    assert (found.values[0], found.values[-1]) == (1.0, 40.0)


def test_points_of_an_attempt_that_arrive_late_are_before_those_of_the_next(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    for attempt, seq, value in ((1, 1, 3.0), (2, 1, 1.0), (1, 2, 2.0)):
        file.append(attempt, 0, seq, [batch([value])])
    for _ in range(2):
        (found,) = read_metrics(file.path)
        assert (found.attempts, found.values) == ((1, 1, 2), (3.0, 2.0, 1.0))
        file.thin(100)


def test_a_file_with_many_series_and_attempts_is_not_thinned_by_each_append(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, max_bytes=4000, max_points=40)
    for attempt in range(1, 21):
        file.append(attempt, 0, 1, [batch([1.0] * 10, name=f"metric {number}") for number in range(10)])
    inodes = set()
    for seq in range(2, 32):
        file.append(20, 0, seq, [batch([1.0])])
        inodes.add(file.path.stat().st_ino)
    assert len(inodes) == 1


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_the_extremes_and_the_ends(values: list[float], limit: int) -> None:
    whole = series(values)
    few = thin(whole, limit)
    finite = [value for value in values if math.isfinite(value)]
    kept = [value for value in few.values if math.isfinite(value)]
    assert (few.steps[0], few.steps[-1]) == (whole.steps[0], whole.steps[-1])
    assert [min(finite, default=None), max(finite, default=None)] == [min(kept, default=None), max(kept, default=None)]
    assert any(map(math.isnan, values)) <= (any(map(math.isnan, few.values)) or not math.isfinite(sum(few.values)))
    assert len(few) <= limit * 5 / 4 + 5


def test_thinning_keeps_both_ends_of_each_attempt() -> None:
    few = thin(series([1.0] * 1000, [1] * 333 + [2] * 667), 16)
    steps = {attempt: [s for s, a in zip(few.steps, few.attempts, strict=True) if a == attempt] for attempt in (1, 2)}
    assert (steps[1][0], steps[1][-1], steps[2][0], steps[2][-1]) == (0, 332, 333, 999)


def test_short_series_keep_all_their_points_beside_long_ones() -> None:
    few = thinned([series([1.0] * 10), series([2.0] * 10_000)], 1000)
    assert len(few[0]) == 10
    assert len(few[1]) <= 1250


def test_a_reader_parses_only_what_was_appended(tmp_path: Path) -> None:
    file, reader = MetricsFile(tmp_path), MetricsReader(tmp_path / FILE)
    assert reader.read() == ()
    file.append(1, 0, 1, [batch([float(value) for value in range(500)])])
    assert reader.read() == read_metrics(file.path)
    assert reader.read() is reader.read()
    file.append(2, 0, 2, [batch([1.0], start=500), batch([9.0], name="other")])
    with file.path.open("r+b") as opened:
        opened.write(b"#")  # a line that is parsed again would be damaged now
    assert [len(one) for one in reader.read()] == [501, 1]


def test_a_reader_leaves_a_line_that_is_incomplete_to_the_next_call(tmp_path: Path) -> None:
    file, reader = MetricsFile(tmp_path), MetricsReader(tmp_path / FILE)
    file.append(1, 0, 1, [batch([3.0])])
    file.append(1, 0, 2, [batch([2.0], start=1)])
    text = file.path.read_bytes()
    file.path.write_bytes(text[:-20])
    assert [len(one) for one in reader.read()] == [1]
    file.path.write_bytes(text)
    assert [len(one) for one in reader.read()] == [2]


def test_a_reader_notices_a_file_that_was_replaced_or_has_late_lines(tmp_path: Path) -> None:
    file, reader = MetricsFile(tmp_path), MetricsReader(tmp_path / FILE)
    file.append(2, 0, 1, [batch([float(value) for value in range(5_000)])])
    assert [len(one) for one in reader.read()] == [5_000]
    file.append(1, 0, 1, [batch([7.0])])
    assert reader.read() == read_metrics(file.path)
    file.thin(100)
    assert reader.read() == read_metrics(file.path)
    file.path.unlink()
    assert reader.read() == ()
