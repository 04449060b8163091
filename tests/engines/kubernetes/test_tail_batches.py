"""Lines of a pod's log reach its files, also the last of many that come at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.supervise.log_tail import LogTail


def line(number: int) -> bytes:
    return b"2026-11-21T16:00:00.%09dZ [0] line %d" % (number, number)


def log(folder: Path) -> list[str]:
    return (folder / "rank-0.log").read_text().splitlines()


def test_the_last_of_many_lines_is_written_without_another(tmp_path: Path) -> None:
    intake = LogTail(tmp_path, 0, [0])
    intake.begin()
    for number in range(5):
        intake.put(line(number))
    intake.flush()
    assert log(tmp_path) == [f"line {number}" for number in range(5)]


def test_lines_that_were_not_written_come_again_and_none_twice(tmp_path: Path) -> None:
    intake = LogTail(tmp_path, 0, [0])
    assert intake.begin() is None
    for number in range(3):
        intake.put(line(number))
    since = intake.begin()  # the connection broke
    assert since is not None
    for number in range(6):
        intake.put(line(number))
    intake.flush()
    assert log(tmp_path) == [f"line {number}" for number in range(6)]


def test_after_a_full_disk_the_log_is_read_anew(tmp_path: Path) -> None:
    intake = LogTail(tmp_path, 0, [0])
    intake.begin()
    intake.put(line(0))
    (tmp_path / "node-0.fresh").mkdir()  # in the way of the cursor
    intake.put(line(1))
    with pytest.raises(OSError, match="fresh"):
        intake.flush()
    with pytest.raises(OSError, match="anew"):
        intake.flush()
    (tmp_path / "node-0.fresh").rmdir()
    intake.begin()
    for number in range(3):
        intake.put(line(number))
    intake.flush()
    assert log(tmp_path) == [f"line {number}" for number in range(3)]
