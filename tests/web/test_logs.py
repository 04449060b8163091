"""Parts of a log are read by position, time and text, whatever its length."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.web.records import BEGAN, write_log

from windlass.runs.logs import LogLine
from windlass.web import logs
from windlass.web.logs import RankLog, row_of


@pytest.fixture
def log(tmp_path: Path) -> RankLog:
    """A log of 5,000 lines, every second of which is structured, in records of a hundred lines."""
    lines = [f"line {number}" if number % 2 else '::windlass {"step": 1}' for number in range(5_000)]
    write_log(tmp_path, 1, 0, lines)
    return RankLog(tmp_path, 1, 0)


def test_windows_forward_have_every_line_once(log: RankLog) -> None:
    seen, offset = [], 0
    while offset < log.size:
        _, offset, rows = log.forward(offset, 300)
        seen += [row.text for row in rows]
    assert seen == [f"line {number}" for number in range(1, 5_000, 2)]


def test_windows_backward_have_every_line_once(log: RankLog) -> None:
    seen: list[str] = []
    before = log.size
    while before > 0:
        before, _, rows = log.backward(before, 300)
        seen[:0] = [row.text for row in rows]
        if not rows:
            break
    assert seen == [f"line {number}" for number in range(1, 5_000, 2)]


def test_window_begins_with_a_whole_line(log: RankLog) -> None:
    begin, _, rows = log.forward(40_003, 2)
    assert begin >= 40_003
    assert all(row.text.startswith("line ") for row in rows)


def test_line_has_the_time_of_the_record_with_its_newline(log: RankLog) -> None:
    _, _, rows = log.forward(0, 501)
    assert (rows[-1].text, rows[-1].time) == ("line 1001", BEGAN + 11)


def test_structured_lines_do_not_hide_text_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path, 1, 0, ["first", *['::windlass {"step": 1}'] * 500, "last"])
    monkeypatch.setattr(logs, "WINDOW_BYTES", 1_000)
    log = RankLog(tmp_path, 1, 0)
    assert [row.text for row in log.backward(log.size - 5, 10)[2]] == ["first"]
    assert [row.text for row in log.forward(6, 10)[2]] == ["last"]


def test_line_longer_than_a_window_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path, 1, 0, ["x" * 300_000, "after"])
    log = RankLog(tmp_path, 1, 0)
    begin, end, rows = log.forward(0, 10)
    assert len(rows[0].text) < 3_000
    assert end > begin
    assert [row.text for row in log.backward(log.size, 1)[2]] == ["after"]


def test_line_that_was_half_written_is_read_again(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 0, ["one"])
    with open(tmp_path / "attempt-1" / "rank-0.log", "ab") as file:
        file.write(b"epoch 3 lo")
    log = RankLog(tmp_path, 1, 0)
    for _, end, rows in (log.backward(log.size, 10), log.forward(0, 10)):
        assert [(row.text, row.offset) for row in rows] == [("one", 0), ("epoch 3 lo", 4)]
        assert end == log.whole == 4
    with open(tmp_path / "attempt-1" / "rank-0.log", "ab") as file:
        file.write(b"ss=0.5\nthree\n")
    log = RankLog(tmp_path, 1, 0)
    assert [row.text for row in log.forward(4, 10)[2]] == ["epoch 3 loss=0.5", "three"]


def test_incomplete_line_longer_than_a_window_is_not_read_again(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 0, ["one"])
    with open(tmp_path / "attempt-1" / "rank-0.log", "ab") as file:
        file.write(b"x" * 300_000)
    log = RankLog(tmp_path, 1, 0)
    assert log.whole == log.size
    assert log.backward(log.size, 10)[1] == log.size


def test_progress_bar_shows_its_last_state(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 0, ["".join(f"\r{percent:3}%|{'#' * percent}" for percent in range(101)) * 2])
    log = RankLog(tmp_path, 1, 0)
    assert [row.text for row in log.forward(0, 1)[2]] == [f"100%|{'#' * 100}"]


def test_search_finds_lines_and_ignores_case_of_a_lower_case_text(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 0, ["Error: one", "fine", "an error", '::windlass {"error": 1}'])
    log = RankLog(tmp_path, 1, 0)
    found, following = log.search("error", 0)
    assert ([row.text for row in found], following) == (["Error: one", "an error"], None)
    assert [row.text for row in log.search("Error", 0)[0]] == ["Error: one"]
    assert [row.offset for row in found] == [0, 16]


def test_search_with_many_matches_continues_where_it_stopped(tmp_path: Path) -> None:
    write_log(tmp_path, 1, 0, [f"hit {number}" for number in range(1_000)])
    log = RankLog(tmp_path, 1, 0)
    seen, offset = list[str](), 0
    while offset is not None:
        found, following = log.search("hit", offset)
        assert len(found) <= 200
        seen += [row.text for row in found]
        if following is None:
            break
        offset = following
    assert seen == [f"hit {number}" for number in range(1_000)]


def test_match_across_two_blocks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SEARCH_BYTES", 64)
    write_log(tmp_path, 1, 0, [f"{'x' * 50} needle {number}" for number in range(20)])
    log = RankLog(tmp_path, 1, 0)
    assert len(log.search("needle", 0)[0]) == 20


def test_missing_log_is_empty(tmp_path: Path) -> None:
    log = RankLog(tmp_path, 1, 9)
    assert log.forward(0, 10) == (0, 0, [])
    assert log.backward(100, 10) == (0, 0, [])
    assert log.search("x", 0) == ([], None)


def test_control_characters_do_not_reach_the_page() -> None:
    line = LogLine(0, 1, 0, b"10%\r\x1b[31m100%\x1b[0m \x1b]0;title\x07\x00\xff", True)
    assert row_of(line).text == "100% ��"


@pytest.mark.slow
def test_ten_million_lines_are_read_in_parts(tmp_path: Path) -> None:
    """The index has a record for each hundred lines, as of a script that prints fast."""
    import time

    folder = tmp_path / "attempt-1"
    folder.mkdir()
    block = b"".join(b"a line of a long log\n" for _ in range(100_000))
    with open(folder / "rank-0.log", "wb") as file:
        for _ in range(100):
            file.write(block)
    log = RankLog(tmp_path, 1, 0)
    began = time.process_time()
    assert len(log.backward(log.size, 200)[2]) == 200
    assert len(log.forward(log.size // 2, 200)[2]) == 200
    assert time.process_time() - began < 1.0
    found, following = log.search("no such text", 0)
    assert found == []
    assert following is None or following > 0
