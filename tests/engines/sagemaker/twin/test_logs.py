"""Log streams are files that can be read at any time; every line is read once and in order."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from windlass.engines.sagemaker.service import Refused
from windlass.engines.sagemaker.twin import logs
from windlass.engines.sagemaker.twin.logs import MAX_LINE_BYTES, LogWriter, read_page, streams


def texts(path: Path, token: str | None = None) -> list[str]:
    return [text for _, text in read_page(path, 0, token).lines]


def writer(path: Path, *seconds: float) -> LogWriter:
    times = iter(seconds) if seconds else count(1.0)
    return LogWriter(path, lambda: next(times))


def test_lines_written_in_pieces_are_joined(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    for piece in (b"on", b"e\ntwo\n\nth", b"ree"):
        log.feed(piece)
    assert texts(tmp_path / "log") == ["one", "two", ""]
    log.close()
    assert texts(tmp_path / "log") == ["one", "two", "", "three"]


def test_time_stamps_never_go_backwards(tmp_path: Path) -> None:
    log = writer(tmp_path / "log", 5.0, 3.0, 7.0)
    for line in (b"a\n", b"b\n", b"c\n"):
        log.feed(line)
    assert list(read_page(tmp_path / "log", 0, None).lines) == [(5000, "a"), (5000, "b"), (7000, "c")]
    assert list(read_page(tmp_path / "log", 5001, None).lines) == [(7000, "c")]


def test_long_line_is_split_between_characters_without_loss(tmp_path: Path) -> None:
    line = "a" + "€" * MAX_LINE_BYTES  # characters of three bytes, so that no limit falls between characters
    log = writer(tmp_path / "log")
    log.feed(line.encode()[: MAX_LINE_BYTES + 1])
    log.feed(line.encode()[MAX_LINE_BYTES + 1 :] + b"\nnext\n")
    found = texts(tmp_path / "log")
    token = read_page(tmp_path / "log", 0, None).token
    found += texts(tmp_path / "log", token) if found[-1] != "next" else []
    assert "".join(found[:-1]) == line
    assert found[-1] == "next"
    assert max(len(one.encode()) for one in found) <= MAX_LINE_BYTES


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    log.feed(b"a\xff\x00\r50%\n")
    assert texts(tmp_path / "log") == ["a\ufffd\x00\r50%"]


def test_token_continues_after_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAGE_BYTES", 40)
    log = writer(tmp_path / "log")
    log.feed(b"".join(b"line %d\n" % number for number in range(10)))
    found, token = [], None
    while (page := read_page(tmp_path / "log", 0, token)).token != token:
        found += [text for _, text in page.lines]
        token = page.token
    assert found == [f"line {number}" for number in range(10)]
    log.feed(b"more\n")
    assert texts(tmp_path / "log", token) == ["more"]


def test_a_line_whose_writer_was_killed_is_not_read(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    log.feed(b"whole\n")
    with (tmp_path / "log").open("ab") as file:
        file.write(b'[7, "hal')
    page = read_page(tmp_path / "log", 0, None)
    assert [text for _, text in page.lines] == ["whole"]
    assert read_page(tmp_path / "log", 0, page.token).token == page.token


@pytest.mark.parametrize("token", ["", "-1", "x", "1", "99999", "1e3", "٣"])
def test_invalid_token_is_refused(tmp_path: Path, token: str) -> None:
    writer(tmp_path / "log").feed(b"whole\n")
    with pytest.raises(Refused, match="no token"):
        read_page(tmp_path / "log", 0, token)


def test_streams_are_in_the_order_of_starts_and_hosts(tmp_path: Path) -> None:
    for name in ("algo-10-5", "algo-2-5", "algo-1-9", "algo-1-10"):
        (tmp_path / name).touch()
    assert streams(tmp_path, "job") == ["job/algo-2-5", "job/algo-10-5", "job/algo-1-9", "job/algo-1-10"]
    assert streams(tmp_path / "none", "job") == []
