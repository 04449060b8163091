from __future__ import annotations

import io
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.errors import StoreError
from windlass.runs.logs import LogBlock, LogLine, RunLogs
from windlass.worker.logfile import LogFile

REPORT = b'::windlass {"step":1}\n'


class Writer:
    """Writes one rank's log as a worker does: first the bytes, then the record."""

    def __init__(self, run_dir: Path, rank: int, attempt: int = 1) -> None:
        folder = run_dir / f"attempt-{attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"rank-{rank}.log"
        self.idx = folder / f"rank-{rank}.idx"
        self.end = 0
        self.log.touch()

    def write(self, data: bytes, time_ns: int | None) -> Writer:
        with open(self.log, "ab") as file:
            file.write(data)
        self.end += len(data)
        if time_ns is not None:
            with open(self.idx, "ab") as file:
                file.write(struct.pack("<QQ", time_ns, self.end))
        return self

    def tear(self, num_bytes: int) -> Writer:
        with open(self.idx, "ab") as file:
            file.write(b"\xff" * num_bytes)
        return self

    def changed_at(self, time_ns: int) -> Writer:
        os.utime(self.log, ns=(time_ns, time_ns))
        return self


def texts(lines: Iterable[LogLine]) -> list[str]:
    return [f"{line.rank}:{line.text}" for line in lines]


def test_lines_of_all_ranks_come_in_the_order_of_time(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\n", 10).write(b"d\n", 40)
    Writer(tmp_path, 1).write(b"b\nc\n", 20).write(b"e\n", 50)
    assert texts(RunLogs(tmp_path).read()) == ["0:a", "1:b", "1:c", "0:d", "1:e"]


def test_what_the_worker_writes_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "attempt-1"
    folder.mkdir()
    files = [LogFile(str(folder), rank, None) for rank in range(2)]
    for now, rank, data in [(10, 0, b"a\nb"), (20, 1, b"x\n" + REPORT), (30, 0, b"c\n"), (40, 1, b"end")]:
        files[rank].keep(data, now)
        files[rank].stamp(now)
    for file in files:
        file.close()
    found = [(line.time_ns, line.rank, line.data, line.newline) for line in RunLogs(tmp_path).read()]
    assert found == [(10, 0, b"a", True), (20, 1, b"x", True), (30, 0, b"bc", True), (40, 1, b"end", False)]


def test_equal_times_are_ordered_by_rank(tmp_path: Path) -> None:
    Writer(tmp_path, 10).write(b"c\n", 5)
    Writer(tmp_path, 2).write(b"b\n", 5)
    Writer(tmp_path, 1).write(b"a\n", 5)
    assert texts(RunLogs(tmp_path).read()) == ["1:a", "2:b", "10:c"]


def test_a_clock_set_back_loses_no_line_and_keeps_each_ranks_order(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\n", 100).write(b"b\n", 1).write(b"c\n", 200)
    Writer(tmp_path, 1).write(b"x\n", 150)
    found = texts(RunLogs(tmp_path).read())
    assert sorted(found) == ["0:a", "0:b", "0:c", "1:x"]
    assert [text for text in found if text[0] == "0"] == ["0:a", "0:b", "0:c"]


def test_a_line_has_the_time_of_its_newline(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"he", 10).write(b"llo\nwor", 20).write(b"ld\n", 30)
    assert [(line.time_ns, line.data) for line in RunLogs(tmp_path).read()] == [(20, b"hello"), (30, b"world")]


def test_a_run_without_logs_has_no_lines(tmp_path: Path) -> None:
    logs = RunLogs(tmp_path / "nothing")
    assert (logs.attempts(), logs.ranks(1), list(logs.read()), list(logs.read(tail=3))) == ([], [], [], [])
    assert list(logs.read(is_over=lambda: True)) == []
    Writer(tmp_path, 0)
    assert list(RunLogs(tmp_path).read()) == []
    assert list(RunLogs(tmp_path).read(tail=1)) == []


def test_other_names_are_neither_attempts_nor_ranks(tmp_path: Path) -> None:
    for attempt in (2, 10, 1):
        Writer(tmp_path, 0, attempt)
    for name in ("attempt-0", "attempt-x", "attempt-01", "outputs"):
        (tmp_path / name).mkdir()
    for rank in (11, 3):
        Writer(tmp_path, rank, 2)
    (tmp_path / "attempt-2" / "rank-x.log").touch()
    assert RunLogs(tmp_path).attempts() == [1, 2, 10]
    assert RunLogs(tmp_path).ranks(2) == [0, 3, 11]


def test_attempts_come_one_after_the_other_whatever_their_clocks_say(tmp_path: Path) -> None:
    Writer(tmp_path, 0, attempt=1).write(b"first\n", 900)
    Writer(tmp_path, 0, attempt=2).write(b"second\n", 100)
    assert [(line.attempt, line.text) for line in RunLogs(tmp_path).read()] == [(1, "first"), (2, "second")]
    assert texts(RunLogs(tmp_path).read(attempt=2)) == ["0:second"]
    assert texts(RunLogs(tmp_path).read(attempt=3)) == []


def test_only_the_ranks_asked_for_are_read(tmp_path: Path) -> None:
    for rank in range(4):
        Writer(tmp_path, rank).write(b"x\n", rank)
    assert texts(RunLogs(tmp_path).read(ranks={1, 3, 9})) == ["1:x", "3:x"]
    assert texts(RunLogs(tmp_path).read(ranks=[])) == []


def test_a_torn_record_is_not_read(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\n", 10).tear(15)
    assert [(line.time_ns, line.text) for line in RunLogs(tmp_path).read()] == [(10, "a")]


def test_bytes_beyond_the_last_record_have_the_time_of_the_files_last_change(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\n", 10).write(b"b\nc", None).tear(7).changed_at(77)
    found = [(line.time_ns, line.text, line.newline) for line in RunLogs(tmp_path).read()]
    assert found == [(10, "a", True), (77, "b", True), (77, "c", False)]


def test_a_log_without_any_index_is_read_whole(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\nb\n", None).changed_at(5)
    assert texts(RunLogs(tmp_path).read()) == ["0:a", "0:b"]
    assert texts(RunLogs(tmp_path).read(tail=1)) == ["0:b"]


def test_a_log_shorter_than_its_index_says_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0).write(b"one\n", 10).write(b"two\n", 20).write(b"three\n", 30)
    os.truncate(writer.log, 6)
    found = [(line.time_ns, line.text, line.newline) for line in RunLogs(tmp_path).read()]
    assert found == [(10, "one", True), (20, "tw", False)]
    assert texts(RunLogs(tmp_path).read(tail=1)) == ["0:tw"]


def test_bytes_that_are_not_utf8_stay_in_data_and_are_replaced_in_text(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"\xff\x00ok\n", 1)
    (line,) = RunLogs(tmp_path).read()
    assert (line.data, line.text) == (b"\xff\x00ok", "\ufffd\x00ok")


def test_carriage_returns_stay_where_they_are(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"\r 1%|\r 2%|", 1).write(b"\r 3%|\nnext\r\n", 2)
    assert [line.data for line in RunLogs(tmp_path).read()] == [b"\r 1%|\r 2%|\r 3%|", b"next\r"]
    assert [line.data for line in RunLogs(tmp_path).read(tail=2)] == [b"\r 1%|\r 2%|\r 3%|", b"next\r"]
    assert [line.data for line in RunLogs(tmp_path).read(tail=1)] == [b"next\r"]


def test_structured_lines_are_left_out(tmp_path: Path) -> None:
    data = b"a\n" + REPORT + b"b ::windlass c\n\n" + REPORT
    Writer(tmp_path, 0).write(data, 1).write(REPORT, 2).write(REPORT.rstrip(), 3)
    logs = RunLogs(tmp_path)
    assert [line.data for line in logs.read()] == [b"a", b"b ::windlass c", b""]
    assert [line.data for line in logs.read(tail=2)] == [b"b ::windlass c", b""]


def test_a_bar_in_front_of_a_structured_line_is_shown_without_it(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"\r 45%|####" + REPORT + b"\r 46%|####\n", 1)
    assert [line.data for line in RunLogs(tmp_path).read()] == [b"\r 45%|####", b"\r 46%|####"]


def test_tail_looks_past_any_number_of_structured_lines(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0)
    for step in range(300):
        writer.write(b"line %d\n" % step, 1000 * step)
        for number in range(9):
            writer.write(REPORT, 1000 * step + number + 1)
    assert texts(RunLogs(tmp_path).read(tail=3)) == ["0:line 297", "0:line 298", "0:line 299"]


def test_tail_reaches_back_into_earlier_attempts(tmp_path: Path) -> None:
    Writer(tmp_path, 0, 1).write(b"a\nb\nc", 1)
    Writer(tmp_path, 0, 2)
    Writer(tmp_path, 0, 3).write(b"d\n", 1)
    assert texts(RunLogs(tmp_path).read(tail=3)) == ["0:b", "0:c", "0:d"]
    assert texts(RunLogs(tmp_path).read(tail=0)) == []
    assert texts(RunLogs(tmp_path).read(tail=99)) == ["0:a", "0:b", "0:c", "0:d"]


def test_a_negative_tail_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tail must not be negative"):
        list(RunLogs(tmp_path).read(tail=-1))


def test_since_leaves_out_what_arrived_earlier(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\nb", 10).write(b"c\n", 20).write(b"d", 30).changed_at(30)
    Writer(tmp_path, 1).write(b"old, never ended", 5).changed_at(5)
    logs = RunLogs(tmp_path)
    assert texts(logs.read(since_ns=11)) == ["0:bc", "0:d"]
    assert texts(logs.read(since_ns=20)) == ["0:bc", "0:d"]
    assert texts(logs.read(since_ns=21)) == ["0:d"]
    assert texts(logs.read(since_ns=31)) == []
    assert texts(logs.read(since_ns=11, tail=1)) == ["0:d"]
    assert texts(logs.read(since_ns=11, tail=9)) == ["0:bc", "0:d"]


def test_a_file_that_cannot_be_read_is_an_error_of_the_store(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\n", 1).log.unlink()
    (tmp_path / "attempt-1" / "rank-0.log").mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        list(RunLogs(tmp_path).read())


def test_a_block_is_prefixed_line_by_line_and_gets_no_newline() -> None:
    assert LogBlock(1, 1, 3, b"a\n\nb\n").prefixed(b"[3] ") == b"[3] a\n[3] \n[3] b\n"
    assert LogBlock(1, 1, 3, b"a\nb").prefixed(b"[3] ") == b"[3] a\n[3] b"
    assert LogBlock(1, 1, 3, b"a\nb").num_lines == 2


@pytest.mark.slow
def test_a_huge_line_in_small_records_costs_linear_time(tmp_path: Path) -> None:
    size, record = 100 << 20, 64 << 10
    writer = Writer(tmp_path, 0).write(b"x" * size, None)
    records = b"".join(struct.pack("<QQ", end, end) for end in range(record, size + 1, record))
    writer.idx.write_bytes(records)
    writer.write(b"\nafter\n", size + 1)
    begin = time.process_time()
    assert [len(line.data) for line in RunLogs(tmp_path).read()] == [size, 5]
    assert [len(line.data) for line in RunLogs(tmp_path).read(tail=2)] == [size, 5]
    assert [len(line.data) for line in RunLogs(tmp_path).read(tail=1)] == [5]
    assert time.process_time() - begin < 30  # reading 100 MiB again for each of 1600 records would take minutes


# ---------------------------------------------------------------- against a model

_PIECES = st.lists(
    st.sampled_from([b"a", b"\n", b"bc\nd", b"\n\n", b"\re", b"\xffx\ny\n", b"\n" + REPORT]), min_size=1, max_size=4
).map(b"".join)
_RANK = st.tuples(
    st.lists(st.tuples(st.integers(0, 3), _PIECES), max_size=8),  # time since the previous record, bytes
    st.one_of(st.just(b""), _PIECES),  # bytes without a record
    st.integers(0, 15),  # bytes of a truncated record
)
_RUN = st.lists(st.lists(_RANK, max_size=4), min_size=1, max_size=3)
_Rank = tuple[list[tuple[int, bytes]], bytes, int]


def _model_of_rank(rank_number: int, attempt: int, rank: _Rank) -> list[LogLine]:
    records, beyond, _ = rank
    data, ends, now = b"", [], 0
    for delta, piece in records:
        data, now = data + piece, now + delta
        ends.append((len(data), now))
    if beyond:
        data += beyond
        ends.append((len(data), 1000))
    lines, offset = [], 0
    for part in data.split(b"\n"):
        whole = offset + len(part) < len(data)
        if part or whole:
            last_byte = offset + len(part) + (1 if whole else 0)
            arrived = next(when for end, when in ends if end >= last_byte)
            lines.append(LogLine(arrived, attempt, rank_number, part, whole))
        offset += len(part) + 1
    return lines


def _model(run: list[list[_Rank]], *, since_ns: int | None, tail: int | None) -> list[LogLine]:
    lines: list[LogLine] = []
    for attempt, ranks in enumerate(run, start=1):
        of_attempt = [line for number, rank in enumerate(ranks) for line in _model_of_rank(number, attempt, rank)]
        lines += sorted(of_attempt, key=lambda line: line.time_ns)
    lines = [line for line in lines if since_ns is None or line.time_ns >= since_ns]
    lines = [line for line in lines if not line.data.startswith(b"::windlass ")]
    return lines if tail is None else lines[max(0, len(lines) - tail) :]


def _write(run_dir: Path, run: list[list[_Rank]]) -> None:
    for attempt, ranks in enumerate(run, start=1):
        (run_dir / f"attempt-{attempt}").mkdir(parents=True)
        for number, (records, beyond, torn) in enumerate(ranks):
            writer, now = Writer(run_dir, number, attempt), 0
            for delta, piece in records:
                now += delta
                writer.write(piece, now)
            writer.write(beyond, None).tear(torn).changed_at(1000)


@settings(deadline=None, max_examples=80)
@given(
    run=_RUN,
    since_ns=st.one_of(st.none(), st.integers(0, 24)),
    tail=st.one_of(st.none(), st.integers(0, 20)),
)
def test_reading_is_a_stable_sort_of_all_lines(
    tmp_path_factory: pytest.TempPathFactory,
    run: list[list[_Rank]],
    since_ns: int | None,
    tail: int | None,
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    _write(run_dir, run)
    expected = _model(run, since_ns=since_ns, tail=tail)
    logs = RunLogs(run_dir)
    assert list(logs.read(since_ns=since_ns, tail=tail)) == expected
    followed = logs.read(is_over=lambda: True, since_ns=since_ns, tail=tail)
    assert list(followed) == expected


# ---------------------------------------------------------------- following

_STEP = st.tuples(st.integers(1, 2), st.integers(0, 2), _PIECES, st.booleans())  # attempt, rank, bytes, is it recorded


def _steps_as_over(steps: list[Callable[[], object]]) -> Callable[[], bool]:
    """Returns an `is_over` that performs one more step at each call."""
    waiting = iter(steps)

    def is_over() -> bool:
        step = next(waiting, None)
        if step is not None:
            step()
        return step is None

    return is_over


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(_STEP, max_size=15), tail=st.one_of(st.none(), st.just(10_000)))
def test_following_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, bytes, bool]], tail: int | None
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    steps = sorted(steps, key=lambda step: step[0])  # one attempt after the other
    written: dict[tuple[int, int], bytes] = {}
    todo: list[Callable[[], object]] = []
    writers: dict[tuple[int, int], Writer] = {}
    for now, (attempt, rank, data, recorded) in enumerate(steps, start=1):
        written[attempt, rank] = written.get((attempt, rank), b"") + data

        def act(
            now: int = now, attempt: int = attempt, rank: int = rank, data: bytes = data, kept: bool = recorded
        ) -> None:
            writer = writers.setdefault((attempt, rank), Writer(run_dir, rank, attempt))
            writer.write(data, now if kept else None)

        todo.append(act)
    found: dict[tuple[int, int], bytes] = {}
    order = []
    for line in RunLogs(run_dir).read(is_over=_steps_as_over(todo), poll_seconds=0, tail=tail):
        key = (line.attempt, line.rank)
        found[key] = found.get(key, b"") + line.data + (b"\n" if line.newline else b"")
        order.append(line.attempt)
    assert found == {key: shown for key, data in written.items() if (shown := _without_structured(data))}
    assert order == sorted(order)


def _without_structured(data: bytes) -> bytes:
    return b"".join(line for line in io.BytesIO(data) if not line.startswith(b"::windlass "))


def test_following_holds_an_unended_line_back_until_the_run_is_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0).write(b"loading", 1)
    seen: list[str] = []
    steps: list[Callable[[], object]] = [
        lambda: seen.append("-"),
        lambda: writer.write(b" model\nready", 2),
        lambda: seen.append("-"),
    ]
    for line in RunLogs(tmp_path).read(is_over=_steps_as_over(steps), poll_seconds=0):
        seen.append(f"{line.text} {line.newline}")
    assert seen == ["-", "loading model True", "-", "ready False"]


def test_following_one_attempt_ends_when_the_next_one_begins(tmp_path: Path) -> None:
    Writer(tmp_path, 0).write(b"a\nb", 1)
    follow = RunLogs(tmp_path).read(
        is_over=_steps_as_over([lambda: None, lambda: Writer(tmp_path, 0, 2).write(b"c\n", 2), lambda: None]),
        attempt=1,
        poll_seconds=0,
    )
    assert texts(follow) == ["0:a", "0:b"]


def test_following_with_tail_begins_with_the_last_lines_and_goes_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0).write(b"a\nb\nc\n", 1)
    steps: list[Callable[[], object]] = [lambda: None, lambda: writer.write(b"d\n", 2)]
    follow = RunLogs(tmp_path).read(is_over=_steps_as_over(steps), tail=1, poll_seconds=0)
    assert texts(follow) == ["0:c", "0:d"]


def test_following_four_writers_loses_nothing(tmp_path: Path) -> None:
    num_lines = 400
    done: list[int] = []

    def run_rank(rank: int) -> None:
        writer = Writer(tmp_path, rank)
        for number in range(num_lines):
            half = b"line %d of " % number
            writer.write(half, time.time_ns()).write(b"rank %d\n" % rank, time.time_ns())
        done.append(rank)

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    found: dict[int, list[bytes]] = {}
    for line in RunLogs(tmp_path).read(is_over=lambda: len(done) == 4, poll_seconds=0.001):
        found.setdefault(line.rank, []).append(line.data)
    for thread in threads:
        thread.join()
    for rank in range(4):
        assert found[rank] == [b"line %d of rank %d" % (number, rank) for number in range(num_lines)]
