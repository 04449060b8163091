"""A pod's log is converted to the files of a node without lost or repeated lines, even if reader and stream break."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.runs import node_events
from windlass.runs.logs import RunLogs
from windlass.supervise.log_tail import LogTail, missing_lines
from windlass.worker.pod_log import COUNT_BYTES, PIECE_BYTES, PodLog
from windlass.worker.protocol import NODE_TAG


def stream(*told: tuple[str, bytes], same_time: int = 3) -> list[bytes]:
    """Returns the log in the format of the API, in which every few lines have the same timestamp."""
    read, write = os.pipe()
    outlet = PodLog(write)
    lines: list[bytes] = []
    for tag, data in told:
        outlet.put(tag, data)
        got = b""
        while not got.endswith(b"\n"):
            got += os.read(read, 1 << 20)
        lines += got[:-1].split(b"\n")
    os.close(read)
    os.close(write)
    return [
        b"2026-11-21T10:00:%02d.%09dZ %s" % (at // same_time // 10, at // same_time % 10 * 1000 + 7, line)
        for at, line in enumerate(lines)
    ]


def attempt(tmp_path: Path) -> Path:
    return tmp_path / "attempt-1"


def test_each_rank_gets_what_it_wrote_byte_for_byte(tmp_path: Path) -> None:
    told = [("0", b"epoch 1\n45%|##"), ("1", b"\x00\xff not text\n"), ("0", b"##|\r100%\nlast without an end")]
    mirror = LogTail(attempt(tmp_path), 0, [0, 1])
    mirror.take(stream(*told))
    assert (attempt(tmp_path) / "rank-0.log").read_bytes() == b"epoch 1\n45%|####|\r100%\nlast without an end"
    assert (attempt(tmp_path) / "rank-1.log").read_bytes() == b"\x00\xff not text\n"


def test_line_split_by_the_container_runtime_is_joined(tmp_path: Path) -> None:
    text = b"x" * (5 * PIECE_BYTES + 17) + b"\n"
    lines = stream(("0", text))
    assert max(map(len, lines)) < 16 << 10
    mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.take(lines)
    assert (attempt(tmp_path) / "rank-0.log").read_bytes() == text


@pytest.mark.parametrize(
    "data",
    [
        b"dos\r\nunix\n",
        b"\r\n",
        b"\r\r\n.\r\n",
        b"bar 50%\r",
        b"r.\n",
        b"x" * (PIECE_BYTES - 1) + b"\r\n",
        b"x" * (PIECE_BYTES - 1) + b"\ry\n",
    ],
)
def test_carriage_returns_at_the_end_of_a_line_are_kept(tmp_path: Path, data: bytes) -> None:
    """containerd drops a carriage return before a newline."""
    mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.take(line.removesuffix(b"\r") for line in stream(("0", data)))
    assert (attempt(tmp_path) / "rank-0.log").read_bytes() == data


def test_the_merged_log_is_in_the_order_of_the_lines_times(tmp_path: Path) -> None:
    told = [(str(at % 2), b"line %d\n" % at) for at in range(20)]
    mirror = LogTail(attempt(tmp_path), 0, [0, 1])
    mirror.take(stream(*told, same_time=1))
    assert [line.text for line in RunLogs(tmp_path).read()] == [f"line {at}" for at in range(20)]


def test_lines_of_no_rank_go_to_the_node_output(tmp_path: Path) -> None:
    mirror = LogTail(attempt(tmp_path), 2, [4])
    mirror.take([b"2026-11-21T10:00:00.1Z entrypoint: starting", b"2026-11-21T10:00:00.2+00:00 [w] waiting"])
    assert (attempt(tmp_path) / "node-2.out").read_text() == "entrypoint: starting\nwaiting\n"


@pytest.mark.parametrize("seed", range(20))
def test_reconnects_and_crashes_do_not_change_the_files(tmp_path: Path, seed: int) -> None:
    """The API returns a log again from the second of the last line on; a reader may be killed between any two
    writes.
    """
    chance = random.Random(seed)
    told = [(chance.choice("01n"), b"%d %s\n" % (at, b"x" * chance.randrange(40))) for at in range(200)]
    lines = stream(*told, same_time=chance.randrange(1, 9))
    mirror = LogTail(attempt(tmp_path), 0, [0, 1])
    done = 0
    while done < len(lines):
        since = mirror.begin()
        start = 0 if since is None else next(at for at, line in enumerate(lines) if line[:19] >= since[:19].encode())
        stop = chance.randrange(max(start, done), len(lines)) + 1
        mirror.take(lines[start:stop])
        done = max(done, stop)
        if chance.random() < 0.5:  # The reader is killed; some data that it wrote after the cursor is on the disk.
            for name in ("rank-0.log", "node-0.events"):
                with open(attempt(tmp_path) / name, "ab") as file:
                    file.write(b"torn")
            mirror = LogTail(attempt(tmp_path), 0, [0, 1])
    for tag, name in (("0", "rank-0.log"), ("1", "rank-1.log"), ("n", "node-0.events")):
        assert (attempt(tmp_path) / name).read_bytes() == b"".join(data for who, data in told if who == tag)


def begin(token: str) -> tuple[str, bytes]:
    """Returns the first event of the node of an attempt."""
    start = {"kind": "node", "at": 1.0, "pid": 7, "start_ticks": 1, "boot": "b", "start": "cold", "k": token}
    return "n", json.dumps(start).encode() + b"\n"


@pytest.mark.parametrize("seed", range(10))
def test_attempts_in_one_pod_are_separated(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    told = [
        begin("t1"),
        ("0", b"first\n"),
        ("a", b"over t1\n"),
        ("a", b"2\n"),
        begin("t2"),
        ("0", b"second\n"),
        ("n", b"{}\n"),
        ("a", b"over t1\n"),
        ("a", b"over t2\n"),
        ("a", b"4\n"),
        ("0", b"fourth\n"),
    ]
    lines = stream(*told, same_time=chance.randrange(1, 9))
    found = {}
    for number in (1, 2, 4):
        folder = tmp_path / f"attempt-{number}"
        mirror = LogTail(folder, 0, [0], number, 1)
        done = 0
        while done < len(lines):
            since = mirror.begin()
            start = (
                0 if since is None else next(at for at, line in enumerate(lines) if line[:19] >= since[:19].encode())
            )
            done = chance.randrange(max(start, done), len(lines)) + 1
            mirror.take(lines[start:done])
            if chance.random() < 0.5:
                mirror = LogTail(folder, 0, [0], number, 1)
                done = 0 if mirror.begin() is None else done
        found[number] = (folder / "rank-0.log").read_text(), mirror.is_finished
    assert found == {1: ("first\n", True), 2: ("second\n", True), 4: ("fourth\n", False)}


# -- lines that are missing, and lines of others ----------------------------------------------------------------------


def warnings(folder: Path) -> list[dict[str, Any]]:
    return [event.data() for event in node_events.read(folder / "node-0.events") if event.kind == "warning"]


def flood(*num_lines: int) -> list[bytes]:
    """Returns the log of a pod whose rank 0 prints these numbers of lines in its attempts, from the first event to the
    last count.
    """
    read, write = os.pipe()
    outlet = PodLog(write)
    got = b""
    start = {"kind": "node", "at": 1.0, "pid": 7, "start_ticks": 1, "boot": "b", "start": "cold"}
    for attempt, num in enumerate(num_lines, 1):
        told = [("a", b"over %s\n" % outlet.token.encode()), ("a", b"%d\n" % attempt)] if attempt > 1 else []
        for tag, data in told:
            outlet.put(tag, data)
        outlet.begin(attempt, f"t0ken-{attempt}")
        outlet.put("n", json.dumps(start).encode() + b"\n")
        for at in range(num):
            outlet.put("0", b"line %d of %d\n" % (at, attempt))
            got += os.read(read, 1 << 20)
        outlet.count()
        got += os.read(read, 1 << 20)
    os.close(read)
    os.close(write)
    return [
        b"2026-11-21T10:%02d:%02d.000000007Z %s" % (at // 6000, at // 100 % 60, line)
        for at, line in enumerate(got[:-1].split(b"\n"))
    ]


@pytest.mark.parametrize("dies", [False, True])
def test_rotated_lines_are_counted_and_reported(tmp_path: Path, dies: bool) -> None:
    lines = flood(8_000)
    assert len(lines) > 8_000 + 8_000 * 11 // COUNT_BYTES
    mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.take(lines[:2001])
    if dies:
        mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.begin()
    mirror.take(lines[6_000:])  # The kubelet has only these lines any more.
    text = (attempt(tmp_path) / "rank-0.log").read_text().splitlines()
    gaps = [line for line in text if line.startswith("[windlass]")]
    num_lost = 8_000 - (len(text) - len(gaps))
    assert 3_900 < num_lost < 4_000
    assert len(gaps) == 1
    assert f"{num_lost:,} lines of rank 0 are missing here: the kubelet rotated the log" in gaps[0]
    [warning] = warnings(attempt(tmp_path))
    assert warning["missing"]["0"] == num_lost
    assert "rank 0: " in warning["message"]


def shown(folder: Path) -> tuple[int, list[str]]:
    """Returns how many lines of rank 0 the files contain, and the notes on missing lines."""
    text = (folder / "rank-0.log").read_text().splitlines()
    gaps = [line for line in text if line.startswith("[windlass]")]
    return len(text) - len(gaps), gaps


@pytest.mark.parametrize("num_read", [0, 3_000])
def test_missing_lines_across_attempts_in_one_pod_are_counted(tmp_path: Path, num_read: int) -> None:
    """The reader has seen no line, or some lines of the first attempt; each attempt has a different token."""
    sizes = (6_000, 6_000, 8_000)
    lines = flood(*sizes)
    there, gaps = 0, list[str]()
    for number in (1, 2, 3):
        mirror = LogTail(tmp_path / f"attempt-{number}", 0, [0], number, 1)
        if number == 1:
            mirror.take(lines[:num_read])
            mirror = LogTail(tmp_path / f"attempt-{number}", 0, [0], number, 1)
        mirror.begin()
        mirror.take(lines[-5_000:])  # The kubelet has only these lines any more.
        assert mirror.is_finished is (number < 3), "a reader goes on to the next attempt"
        num, said = shown(tmp_path / f"attempt-{number}")
        there, gaps = there + num, gaps + said
    [gap] = gaps
    assert f"[windlass] {sum(sizes) - there:,} lines of rank 0 are missing here and from attempt 3: " in gap
    assert there > 4_900, "what the kubelet has is shown"
    assert "line 7999 of 3" in (tmp_path / "attempt-3" / "rank-0.log").read_text()


def test_complete_log_has_no_missing_lines(tmp_path: Path) -> None:
    mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.take(flood(8_000))
    assert (attempt(tmp_path) / "rank-0.log").read_text() == "".join(f"line {at} of 1\n" for at in range(8_000))
    assert warnings(attempt(tmp_path)) == []


def test_only_lines_of_ranks_count_as_missing(tmp_path: Path) -> None:
    cursor = {"attempt": 1, "missing": {"n": 1, "\N{SUPERSCRIPT TWO}": 3, "9" * 5000: 4, "0": 5}}
    (tmp_path / "node-0.cursor").write_text(json.dumps(cursor))
    assert missing_lines(tmp_path) == {0: 5}


def test_forged_line_count_reports_no_loss(tmp_path: Path) -> None:
    forged = b'2026-11-21T10:59:00.1Z [n] {"kind": "count", "at": 1.0, "attempt": 9, "lines": {"0": 999999}}'
    mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.take([*flood(100), forged])
    assert warnings(attempt(tmp_path)) == []


def test_attempt_separator_counts_only_at_its_position(tmp_path: Path) -> None:
    mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.take(stream(("0", b"a\n"), ("a", b"2\n"), ("0", b"b\n"), ("a", b"junk\n"), ("0", b"c\n")))
    assert (attempt(tmp_path) / "rank-0.log").read_text() == "a\nb\nc\n"
    assert not mirror.is_finished


@pytest.mark.parametrize("forged", [b"over\n", b"over 1\n", b"over None\n", b"over t\n"])
def test_end_event_without_the_pod_token_is_ignored(tmp_path: Path, forged: bytes) -> None:
    told = [("a", forged), begin("t0ken"), ("0", b"a\n"), ("a", forged), ("a", b"2\n"), ("0", b"b\n")]
    mirror = LogTail(attempt(tmp_path), 0, [0])
    mirror.take(stream(*told))
    assert not mirror.is_finished
    mirror.begin()
    mirror.take(stream(*told, ("a", b"over t0ken\n"), ("a", b"2\n"), ("0", b"c\n")))
    assert mirror.is_finished
    assert (attempt(tmp_path) / "rank-0.log").read_text() == "a\nb\n"


def test_attempt_starts_after_the_observed_end_of_the_previous_one(tmp_path: Path) -> None:
    """Lines that a script wrote in the previous attempt must not count as events of this one."""
    told = [
        begin("t1"),
        ("0", b"a\n"),
        ("a", b"over\n"),
        ("a", b"2\n"),
        ("0", b"b\n"),
        ("a", b"over t1\n"),
        ("a", b"2\n"),
        ("0", b"c\n"),
    ]
    lines = stream(*told)
    first = LogTail(attempt(tmp_path), 0, [0])
    first.take(lines)
    assert first.is_finished
    second = LogTail(tmp_path / "attempt-2", 0, [0], 2, 1)
    second.begin()
    second.take(lines)
    assert (attempt(tmp_path) / "rank-0.log").read_text() == "a\nb\n"
    assert (tmp_path / "attempt-2" / "rank-0.log").read_text() == "c\n"


_tagged = st.builds(
    lambda tag, mark, text: b"[%s]%s %s" % (tag.encode(), mark.encode(), text),
    st.sampled_from(["0", "1", "7", "n", "w", "a", "x", "", "99999999999999999999"]),
    st.sampled_from(["", "+", "r", "+r", "+++"]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([b"over x", b"2", b"1", b"0", b"\xb2", b"9" * 5000, b"{" * 3000]),
        st.builds(
            lambda kind, lines: json.dumps({"kind": kind, "at": 1.0, "attempt": 3, "lines": lines, "k": "x"}).encode(),
            st.sampled_from(["count", "node", "end"]),
            st.dictionaries(st.sampled_from(["0", "a", "n"]), st.one_of(st.integers(), st.none(), st.text())),
        ),
    ),
)
_stamps = st.one_of(
    st.sampled_from([b"2026-11-21T10:00:00.1Z", b"2026-11-21T10:00:00.1Z", b"2026-99-99T99:99:99Z", b"now", b""]),
    st.binary(max_size=30),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.builds(lambda stamp, text: stamp + b" " + text, _stamps, st.one_of(_tagged, st.binary()))))
def test_reader_accepts_any_line_of_a_pod(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    mirror = LogTail(tmp_path_factory.mktemp("run") / "attempt-1", 0, [0, 1])
    mirror.begin()
    mirror.take(lines)
    mirror.begin()
    mirror.take(lines)


def test_kubelet_message_in_place_of_a_log_is_kept_once_without_moving_the_cursor(tmp_path: Path) -> None:
    said = b"unable to retrieve container logs for containerd://0123"
    mirror = LogTail(attempt(tmp_path), 0, [0])
    for _ in range(2):
        assert mirror.begin() is None
        mirror.take([said])
    mirror.take(stream(("0", b"hi\n")))
    assert (attempt(tmp_path) / "node-0.out").read_bytes() == said + b"\n"
    assert (attempt(tmp_path) / "rank-0.log").read_text() == "hi\n"


def test_tail_without_output_grows_files_without_using_space(tmp_path: Path) -> None:
    lines = stream(*(("0", b"x" * 2000 + b"\n") for _ in range(50)), (NODE_TAG, b'{"kind": "output"}\n'))
    whole, length_only = (
        LogTail(tmp_path / "whole", 0, [0]),
        LogTail(tmp_path / "length_only", 0, [0], has_output=False),
    )
    for tail in (whole, length_only):
        tail.take(lines[:60])
        tail.take(lines[60:])
    sizes = [(tmp_path / name / "rank-0.log").stat().st_size for name in ("whole", "length_only")]
    assert sizes[0] == sizes[1] == 50 * 2001
    assert (tmp_path / "length_only" / "rank-0.log").stat().st_blocks == 0
    assert (tmp_path / "length_only" / "node-0.events").read_bytes() == (
        tmp_path / "whole" / "node-0.events"
    ).read_bytes()
    LogTail(tmp_path / "length_only", 0, [0], has_output=False).take(lines)  # The lines are read again after a crash.
    assert (tmp_path / "length_only" / "rank-0.log").stat().st_size == 50 * 2001


# -- lines that come one by one ---------------------------------------------------------------------------------------


def printed(number: int) -> bytes:
    return b"2026-11-21T16:00:00.%09dZ [0] line %d" % (number, number)


def lines_in(folder: Path) -> list[str]:
    return (folder / "rank-0.log").read_text().splitlines()


def test_last_line_is_written_without_a_following_line(tmp_path: Path) -> None:
    intake = LogTail(tmp_path, 0, [0])
    intake.begin()
    for number in range(5):
        intake.put(printed(number))
    intake.flush()
    assert lines_in(tmp_path) == [f"line {number}" for number in range(5)]


def test_unwritten_lines_are_read_again_and_none_twice(tmp_path: Path) -> None:
    intake = LogTail(tmp_path, 0, [0])
    assert intake.begin() is None
    for number in range(3):
        intake.put(printed(number))
    since = intake.begin()  # The connection broke.
    assert since is not None
    for number in range(6):
        intake.put(printed(number))
    intake.flush()
    assert lines_in(tmp_path) == [f"line {number}" for number in range(6)]


def test_log_is_read_again_after_a_full_disk(tmp_path: Path) -> None:
    intake = LogTail(tmp_path, 0, [0])
    intake.begin()
    intake.put(printed(0))
    (tmp_path / "node-0.fresh").mkdir()  # This folder prevents the cursor from being written.
    intake.put(printed(1))
    with pytest.raises(OSError, match="fresh"):
        intake.flush()
    with pytest.raises(OSError, match="anew"):
        intake.flush()
    (tmp_path / "node-0.fresh").rmdir()
    intake.begin()
    for number in range(3):
        intake.put(printed(number))
    intake.flush()
    assert lines_in(tmp_path) == [f"line {number}" for number in range(3)]


def printed_at(second: int, text: str) -> bytes:
    return f"2026-11-21T16:00:{second:02d}.000000000Z [0] {text}".encode()


def test_lines_after_the_clock_of_a_pod_was_set_back_are_kept(tmp_path: Path) -> None:
    lines = [printed_at(30, "before"), printed_at(1, "set back"), printed_at(2, "later"), printed_at(31, "caught up")]
    intake = LogTail(tmp_path, 0, [0])
    intake.begin()
    intake.take(lines[:3])
    assert intake.begin() == "2026-11-21T16:00:30.000000000Z"  # The connection broke.
    intake.take([*lines, printed_at(5, "set back again")])
    assert lines_in(tmp_path) == ["before", "set back", "later", "caught up", "set back again"]


@pytest.mark.parametrize("lost", ["rank-0.log", "rank-0.idx", "node-0.events"])
def test_log_is_read_again_from_its_beginning_if_a_power_cut_has_lost_written_lines(tmp_path: Path, lost: str) -> None:
    lines = [*(printed_at(at, f"line {at}") for at in range(5)), b"2026-11-21T16:00:06.0Z [n] {}"]
    LogTail(tmp_path, 0, [0]).take(lines)
    files = {name: (tmp_path / name).read_bytes() for name in ("rank-0.log", "rank-0.idx", "node-0.events")}
    os.truncate(tmp_path / lost, 1)
    intake = LogTail(tmp_path, 0, [0])
    assert intake.begin() is None
    intake.take(lines)
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_log_whose_length_alone_is_kept_is_not_read_again(tmp_path: Path) -> None:
    LogTail(tmp_path, 0, [0], has_output=False).take([printed_at(1, "a")])
    (tmp_path / "rank-0.log").unlink()
    assert LogTail(tmp_path, 0, [0], has_output=False).begin() is not None
    assert (tmp_path / "rank-0.log").stat().st_size == 2
