"""The event feed of a pod is read as it was written, also if the disk is full."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from windlass.worker import event_feed
from windlass.worker.event_feed import END, OVER, FeedReader, FeedWriter


def all_of(reader: FeedReader) -> bytes:
    assert reader.exists()
    found = b""
    while data := reader.read():
        found += data
    return found


def test_events_are_read_from_any_byte_on(tmp_path: Path) -> None:
    lines = [b'{"kind": "x", "n": %d}\n' % number for number in range(2000)]
    writer = FeedWriter(str(tmp_path), 3, "t0ken")
    first = FeedReader(str(tmp_path), 3, 0)
    for line in lines[:1000]:
        writer.add(line)
    assert all_of(first) == b"".join(lines[:1000])
    for line in lines[1000:]:
        writer.add(line)
    writer.close(OVER)
    assert all_of(first) == b"".join(lines[1000:]) + OVER
    assert first.token == "t0ken"
    second = FeedReader(str(tmp_path), 3, len(b"".join(lines)) - 5)
    assert all_of(second) == lines[-1][-5:] + OVER
    assert not second.has_end
    first.close()


@pytest.mark.parametrize("size", [1, 3, event_feed.CHUNK_BYTES])
def test_end_marker_is_found_wherever_it_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(event_feed, "CHUNK_BYTES", size)
    FeedWriter(str(tmp_path), 1, "t").close(END)
    reader = FeedReader(str(tmp_path), 1, 0)
    assert all_of(reader) == END
    assert reader.has_end


def test_missing_feed_is_awaited_and_removed_feed_is_an_error(tmp_path: Path) -> None:
    reader, later = FeedReader(str(tmp_path), 1, 0), FeedReader(str(tmp_path), 2, 0)
    assert not reader.exists()
    writer = FeedWriter(str(tmp_path), 1, "t")
    assert reader.exists()
    assert not later.exists()
    writer.add(b"{}\n")
    FeedWriter(str(tmp_path), 2, "u").add(b"{}\n")
    with pytest.raises(FileNotFoundError):
        reader.exists()
    assert later.exists()
    assert later.token == "u"


def test_feed_read_to_the_end_of_its_attempt_may_be_removed(tmp_path: Path) -> None:
    FeedWriter(str(tmp_path), 1, "t").close(OVER)
    reader = FeedReader(str(tmp_path), 1, 0)
    all_of(reader)
    FeedWriter(str(tmp_path), 2, "u")
    assert reader.exists()
    assert reader.read() == b""


def test_full_disk_removes_the_feed_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = FeedWriter(str(tmp_path), 1, "t")
    writer.count("0", 5)
    writer.add(b"{}\n")
    monkeypatch.setattr(os, "write", lambda *_: 1)
    writer.add(b"{}\n")
    monkeypatch.undo()
    assert not list(tmp_path.glob("events-*"))
    writer.add(b"{}\n")
    writer.count("0", 5)
    assert FeedReader(str(tmp_path), 1, 0).printed() == {"0": 10}
    writer.close(END)
    FeedWriter(str(tmp_path / "none"), 1, "t").add(b"{}\n")


def test_printed_bytes_are_reported_when_they_change(tmp_path: Path) -> None:
    writer, reader = FeedWriter(str(tmp_path), 1, "t"), FeedReader(str(tmp_path), 1, 0)
    assert reader.printed() == {}
    for rank, size in (("7", 10), ("12", 1 << 40), ("7", 5)):
        writer.count(rank, size)
    assert reader.printed() == {"7": 15, "12": 1 << 40}
    assert reader.printed() == {}
    writer.count("12", 1)
    assert reader.printed() == {"7": 15, "12": (1 << 40) + 1}
    FeedWriter(str(tmp_path), 2, "u")
    assert FeedReader(str(tmp_path), 2, 0).printed() == {}


def test_a_new_event_wakes_its_reader(tmp_path: Path) -> None:
    wake = event_feed.open_wake(str(tmp_path))
    assert wake is not None
    writer = FeedWriter(str(tmp_path), 1, "t")
    os.read(wake, 100)
    assert not select.select([wake], [], [], 0)[0]
    writer.add(b"{}\n")
    assert select.select([wake], [], [], 0)[0]
    os.close(wake)
    writer.add(b"{}\n")
    (tmp_path / event_feed.WAKE).unlink()
    (tmp_path / event_feed.WAKE).mkdir()
    assert event_feed.open_wake(str(tmp_path)) is None
