"""Turns the log and index files of all ranks of a run into one stream of lines in the order of time.

A run keeps, for each attempt N and rank K, two files that one writer appends to:

    RUN_DIR/attempt-N/rank-K.log    the bytes of stdout and stderr exactly as they were written
    RUN_DIR/attempt-N/rank-K.idx    16-byte records (time_ns, end_offset), little-endian u64: "at time_ns the log
                                    had grown to end_offset"; each is written after the bytes that it speaks of

A line's time is that of the record in which its newline arrived. All the lines that share a record travel through the
merge as one block, so its cost grows with the records and not with the lines.
"""

from __future__ import annotations

import bisect
import heapq
import re
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from windlass.errors import StoreError

MARKER = b"::windlass "
"""What a structured line of `windlass.train.report` begins with."""

_RECORD = struct.Struct("<QQ")
_RECORDS_PER_READ = 4096
_PIECE_BYTES = 1 << 20
_SHARED_BUFFER_BYTES = 8 << 20
_ATTEMPT_NAME = re.compile(r"attempt-([1-9][0-9]*)")
_LOG_NAME = re.compile(r"rank-(0|[1-9][0-9]*)\.log")
_STRUCTURED_LINE = re.compile(rb"^::windlass [^\n]*\n?", re.MULTILINE)
# A bar that ends in no newline stands in front of the marker when both go to the same file.
_STRUCTURED_END = re.compile(rb'::windlass \{"[^\n]*\}$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one rank."""

    time_ns: int
    """When its newline arrived, in nanoseconds since 1970 (UTC)."""
    attempt: int
    """From 1."""
    rank: int
    """From 0, global."""
    data: bytes
    """As written, without the newline; a progress bar keeps its carriage returns."""
    newline: bool
    """False only for the last line of a log that does not end in one."""

    @property
    def text(self) -> str:
        """The line for a person's eyes: what is not UTF-8 becomes U+FFFD."""
        return self.data.decode("utf-8", errors="replace")


class LogBlock(NamedTuple):
    """Whole lines of one rank that arrived together; it sorts by time, then rank."""

    time_ns: int
    """When they arrived, in nanoseconds since 1970 (UTC)."""
    attempt: int
    """From 1."""
    rank: int
    """From 0, global."""
    data: bytes
    """One or more lines with their newlines; only the very last line of a log may lack its own."""

    @property
    def num_lines(self) -> int:
        """Lines in the block, one without a newline included."""
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    def lines(self) -> Iterator[LogLine]:
        """Its lines, one by one."""
        time_ns, attempt, rank, data = self
        parts = data.split(b"\n")
        last = parts.pop()
        for part in parts:
            yield LogLine(time_ns, attempt, rank, part, True)
        if last:
            yield LogLine(time_ns, attempt, rank, last, False)

    def prefixed(self, prefix: bytes) -> bytes:
        """The block with `prefix` before each line, `b"[3] "` for example; no newline is added."""
        data = self.data
        if data.endswith(b"\n"):
            return prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
        return prefix + data.replace(b"\n", b"\n" + prefix)


class RunLogs:
    """The logs of one run, of all its attempts and ranks. Reading needs no help from whoever writes.

    Only what is asked for is held in memory: a buffer for each rank, the longest line, and the lines of a `tail`.
    All methods raise `StoreError` where a file is there but cannot be read; a run without logs yet has no lines.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def attempts(self) -> list[int]:
        """The attempts that have a folder, in order."""
        return _numbers(self._run_dir, _ATTEMPT_NAME)

    def ranks(self, attempt: int) -> list[int]:
        """The ranks that have a log in `attempt`, in order."""
        return _numbers(self._folder(attempt), _LOG_NAME)

    def read(
        self,
        *,
        ranks: Collection[int] | None = None,
        attempt: int | None = None,
        since_ns: int | None = None,
        tail: int | None = None,
        structured: bool = False,
    ) -> Iterator[LogLine]:
        """The lines that are there now, ordered by time, attempts one after the other.

        Each rank's own order is kept, also where its clock was set back. `ranks` and `attempt` choose (default: all);
        `since_ns` leaves out what arrived earlier (unix time, ns); `tail` keeps the last so many lines of the merge;
        `structured` includes the lines that `windlass.train.report` writes. Raises ValueError for a negative `tail`.
        """
        blocks = self.read_batches(ranks=ranks, attempt=attempt, since_ns=since_ns, tail=tail, structured=structured)
        for block in blocks:
            yield from block.lines()

    def read_batches(
        self,
        *,
        ranks: Collection[int] | None = None,
        attempt: int | None = None,
        since_ns: int | None = None,
        tail: int | None = None,
        structured: bool = False,
    ) -> Iterator[LogBlock]:
        """As `read`, in blocks: the fast way to print, `out.write(block.prefixed(b"[3] "))`."""
        chosen = [
            _AttemptLogs(self._folder(number), number, ranks, since_ns)
            for number in self.attempts()
            if attempt is None or number == attempt
        ]
        if tail is not None:
            yield from _last_blocks(chosen, tail, ended=len(chosen), structured=structured)
            return
        for logs in chosen:
            yield from _visible(logs.blocks(final=True), structured)

    def follow(
        self,
        *,
        is_over: Callable[[], bool],
        ranks: Collection[int] | None = None,
        since_ns: int | None = None,
        tail: int | None = None,
        attempt: int | None = None,
        poll_seconds: float = 0.05,
        structured: bool = False,
    ) -> Iterator[LogLine]:
        """The lines that are there, then those that arrive, until `is_over()` was true and all was read.

        Arguments as `read`. Attempts and ranks that appear later are followed too; with `attempt`, a later attempt ends
        the following. What arrives within one poll is ordered by time. A last line without newline is held back until
        its attempt, or the run, is over.
        """
        blocks = self.follow_batches(
            is_over=is_over,
            ranks=ranks,
            since_ns=since_ns,
            tail=tail,
            attempt=attempt,
            poll_seconds=poll_seconds,
            structured=structured,
        )
        for block in blocks:
            yield from block.lines()

    def follow_batches(
        self,
        *,
        is_over: Callable[[], bool],
        ranks: Collection[int] | None = None,
        since_ns: int | None = None,
        tail: int | None = None,
        attempt: int | None = None,
        poll_seconds: float = 0.05,
        structured: bool = False,
    ) -> Iterator[LogBlock]:
        """As `follow`, in blocks."""
        followed: dict[int, _AttemptLogs] = {}
        while True:
            over = is_over()  # asked before the files are read, so that what came before it is not missed
            numbers = self.attempts()
            over = over or (attempt is not None and numbers[-1:] > [attempt])
            for number in numbers:
                if number not in followed and attempt in (None, number):
                    followed[number] = _AttemptLogs(self._folder(number), number, ranks, since_ns)
            chosen = [followed[number] for number in sorted(followed)]
            ended = len(chosen) if over else len(chosen) - 1
            if tail is not None:
                yield from _last_blocks(chosen, tail, ended=ended, structured=structured)
                tail = None
            # An earlier attempt is read on as well: a slow node may still be writing its last words.
            for place, logs in enumerate(chosen):
                logs.discover()
                yield from _visible(logs.blocks(final=place < ended), structured)
            if over:
                return
            time.sleep(poll_seconds)

    def copy_raw(self, rank: int, attempt: int, out: BinaryIO, *, structured: bool = False) -> int:
        """Writes one rank's log to `out` as it is, without structured lines unless asked; returns the bytes written."""
        path = self._folder(attempt) / f"rank-{rank}.log"
        offset = written = 0
        rest = b""
        while piece := _read_at(path, offset, _PIECE_BYTES):
            offset += len(piece)
            cut = piece.rfind(b"\n") + 1
            # Structured lines are short: what has grown beyond a piece without a newline is none.
            whole, rest = (rest + piece[:cut], piece[cut:]) if cut else (rest, piece)
            written += out.write(_shown(whole, structured))
        return written + out.write(_shown(rest, structured))

    def _folder(self, attempt: int) -> Path:
        return self._run_dir / f"attempt-{attempt}"


class _AttemptLogs:
    """The logs of one attempt, each with the place up to which it was read."""

    def __init__(self, folder: Path, attempt: int, ranks: Collection[int] | None, since_ns: int | None) -> None:
        self.logs: dict[int, _RankLog] = {}
        self._folder = folder
        self._attempt = attempt
        self._ranks = ranks
        self._since_ns = since_ns
        self.discover()

    def discover(self) -> None:
        """Takes in the ranks that have appeared, from the place that `since_ns` gives."""
        for rank in _numbers(self._folder, _LOG_NAME):
            if rank not in self.logs and (self._ranks is None or rank in self._ranks):
                self.logs[rank] = _RankLog(self._folder, self._attempt, rank, self._since_ns)

    def blocks(self, *, final: bool) -> Iterator[LogBlock]:
        """What is unread, merged; `final` when nobody writes any more, so that what is there is all there will be."""
        buffer_bytes = max(16 << 10, min(256 << 10, _SHARED_BUFFER_BYTES // max(1, len(self.logs))))
        ordered = [self.logs[rank] for rank in sorted(self.logs)]
        return heapq.merge(*(log.blocks(final=final, buffer_bytes=buffer_bytes) for log in ordered))

    def seek_last(self, num_lines: int, *, final: bool) -> bool:
        """Moves to where at least `num_lines` are unread, structured ones counted; True when that is the beginning."""
        starts = {rank: log.num_records() for rank, log in self.logs.items()}
        newest_first = heapq.merge(*(log.counts_backward(final=final) for log in self.logs.values()))
        found, exhausted = 0, False
        while found < num_lines and not exhausted:
            count = next(newest_first, None)
            exhausted = count is None
            if count is not None:
                starts[count.rank] = count.record
                found += count.num_lines
        for rank, log in self.logs.items():
            log.seek(log.first_record if exhausted else starts[rank])
        return exhausted


class _Count(NamedTuple):
    """How many lines one record of a rank holds; sorts from new to old, as the merge does backwards."""

    minus_time_ns: int
    minus_rank: int
    record: int
    num_lines: int

    @property
    def rank(self) -> int:
        return -self.minus_rank


class _RankLog:
    """One rank's log and index, and the place up to which they were read."""

    def __init__(self, folder: Path, attempt: int, rank: int, since_ns: int | None) -> None:
        self._log = folder / f"rank-{rank}.log"
        self._idx = folder / f"rank-{rank}.idx"
        self._attempt = attempt
        self._rank = rank
        self._since_ns = since_ns
        self.first_record = self._first_since(since_ns) if since_ns is not None else 0
        """Records before this one are never read."""
        self.seek(self.first_record)

    def num_records(self) -> int:
        """Records that are whole; a torn one at the end is not."""
        return _size_and_time(self._idx)[0] // _RECORD.size

    def seek(self, record: int) -> None:
        """Goes to the lines whose newline arrived in `record` or later."""
        self._record = record
        self._seen = min(self._records(record - 1, 1)[0][1], _size_and_time(self._log)[0]) if record else 0
        self._line = self._line_start(self._seen)
        self._seen_time_ns: int | None = None

    def blocks(self, *, final: bool, buffer_bytes: int) -> Iterator[LogBlock]:
        """The unread lines, a block for each record; the place moves on, and is kept when all were taken."""
        # `line` is where the first line not yet delivered begins, `seen` how far newlines were looked for.
        line, seen, seen_time_ns = self._line, self._seen, self._seen_time_ns
        attempt, rank = self._attempt, self._rank
        buffer, start = b"", line
        for time_ns, end in self._unread_records(final):
            while seen < end:
                stop = end if end - seen <= _PIECE_BYTES else seen + _PIECE_BYTES
                if stop > start + len(buffer):
                    # What a long line already has is added to the size, so that reading it again costs a constant.
                    start, buffer = line, _read_at(self._log, line, max(buffer_bytes, stop - line + seen - line))
                    stop = min(stop, start + len(buffer))
                    if stop <= seen:
                        break
                cut = buffer.rfind(b"\n", seen - start, stop - start) + 1
                seen, seen_time_ns = stop, time_ns
                if cut:
                    data = buffer[line - start : cut]
                    line = start + cut
                    yield LogBlock(time_ns, attempt, rank, data)
        if final and line < seen and seen_time_ns is not None:
            data = _read_at(self._log, line, seen - line)
            line = seen
            yield LogBlock(seen_time_ns, attempt, rank, data)
        self._line, self._seen, self._seen_time_ns = line, seen, seen_time_ns

    def counts_backward(self, *, final: bool) -> Iterator[_Count]:
        """How many lines each record holds, from the last to the first that `since_ns` allows."""
        size = _size_and_time(self._log)[0]
        unended = int(final and size > 0 and _read_at(self._log, size - 1, 1) != b"\n")
        num_records = self.num_records()
        counter = _NewlineCounter(self._log)
        end = size
        if final:
            covered = min(self._records(num_records - 1, 1)[0][1], size) if num_records else 0
            time_ns = self._time_beyond(num_records)
            if covered < size and (self._since_ns is None or time_ns >= self._since_ns):
                yield _Count(-time_ns, -self._rank, num_records, counter.count(covered, size) + unended)
                unended = 0
            end = covered
        for record, time_ns, begin, stop in self._records_backward(num_records, end):
            yield _Count(-time_ns, -self._rank, record, counter.count(begin, stop) + unended)
            unended = 0

    def _unread_records(self, final: bool) -> Iterator[tuple[int, int]]:
        """The records after the last one read, as (time_ns, end_offset), and at the end what no record speaks of."""
        while records := self._records(self._record, _RECORDS_PER_READ):
            self._record += len(records)
            yield from records
        if final:
            time_ns = self._time_beyond(self._record)
            if self._since_ns is None or time_ns >= self._since_ns:
                yield time_ns, _size_and_time(self._log)[0]

    def _time_beyond(self, num_records: int) -> int:
        """The time of what no record speaks of: the log's last change, and never before the last record."""
        last = self._records(num_records - 1, 1) if num_records else []
        return max(_size_and_time(self._log)[1], last[0][0] if last else 0)

    def _records_backward(self, num_records: int, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Records as (number, time_ns, begin_offset, end_offset), from the last one down to `first_record`."""
        stop = num_records
        while stop > self.first_record:
            first = max(self.first_record, stop - _RECORDS_PER_READ)
            before = self._records(first - 1, 1)[0][1] if first else 0
            records = self._records(first, stop - first)
            begins = [before, *(end for _, end in records)]
            for place in range(len(records) - 1, -1, -1):
                time_ns, end = records[place]
                yield first + place, time_ns, min(begins[place], size), min(end, size)
            stop = first

    def _records(self, first: int, num: int) -> list[tuple[int, int]]:
        data = _read_at(self._idx, first * _RECORD.size, num * _RECORD.size)
        whole = len(data) - len(data) % _RECORD.size
        return list(_RECORD.iter_unpack(data[:whole]))

    def _first_since(self, since_ns: int) -> int:
        """The first record not older than `since_ns`, found by halving."""
        return bisect.bisect_left(range(self.num_records()), since_ns, key=lambda i: self._records(i, 1)[0][0])

    def _line_start(self, offset: int) -> int:
        """Where the line begins that goes on at `offset`."""
        stop = offset
        while stop > 0:
            begin = max(0, stop - (64 << 10))
            found = _read_at(self._log, begin, stop - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            stop = begin
        return 0


class _NewlineCounter:
    """Counts newlines in ranges of a file that are asked for from its end to its beginning."""

    _WINDOW_BYTES = 64 << 10

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = 0
        self._window = b""

    def count(self, begin: int, end: int) -> int:
        total = 0
        while end > begin:
            if not self._begin < end <= self._begin + len(self._window):
                self._begin = max(0, end - self._WINDOW_BYTES)
                self._window = _read_at(self._path, self._begin, end - self._begin)
                if self._begin + len(self._window) < end:
                    return total
            low = max(begin, self._begin)
            total += self._window.count(b"\n", low - self._begin, end - self._begin)
            end = low
        return total


def _last_blocks(attempts: list[_AttemptLogs], tail: int, *, ended: int, structured: bool) -> list[LogBlock]:
    """The last `tail` lines of all attempts, of which the first `ended` are over; every place is moved to the end."""
    if tail < 0:
        raise ValueError(f"tail must not be negative, but is {tail}")
    found: list[LogBlock] = []
    for place in range(len(attempts) - 1, -1, -1):
        blocks = _last_blocks_of(attempts[place], tail, final=place < ended, structured=structured)
        tail -= sum(block.num_lines for block in blocks)
        found[:0] = blocks
    return found


def _last_blocks_of(logs: _AttemptLogs, tail: int, *, final: bool, structured: bool) -> list[LogBlock]:
    wanted, from_start = tail, False
    while True:
        from_start = logs.seek_last(wanted, final=final)
        kept: deque[tuple[int, LogBlock]] = deque()
        num_lines = 0
        for block in _visible(logs.blocks(final=final), structured):
            kept.append((block.num_lines, block))
            num_lines += block.num_lines
            while kept and num_lines - kept[0][0] >= tail:
                num_lines -= kept.popleft()[0]
        if num_lines >= tail or from_start:
            break
        wanted *= 4  # structured lines were counted and are hidden
    blocks = [block for _, block in kept]
    if num_lines > tail:
        blocks[0] = blocks[0]._replace(data=blocks[0].data.split(b"\n", num_lines - tail)[-1])
    return blocks


def _visible(blocks: Iterable[LogBlock], structured: bool) -> Iterator[LogBlock]:
    for block in blocks:
        if structured or MARKER not in block.data:
            yield block
        elif data := _shown(block.data, structured):
            yield block._replace(data=data)


def _shown(data: bytes, structured: bool) -> bytes:
    """Whole lines without the structured ones; a bar in front of one stays and ends where it began."""
    if structured or MARKER not in data:
        return data
    return _STRUCTURED_END.sub(b"", _STRUCTURED_LINE.sub(b"", data))


def _numbers(folder: Path, name: re.Pattern[str]) -> list[int]:
    try:
        return sorted(int(match[1]) for path in folder.iterdir() if (match := name.fullmatch(path.name)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise _unreadable(folder, exc) from exc


def _read_at(path: Path, offset: int, num_bytes: int) -> bytes:
    # Opened anew for each buffer: a thousand ranks would need more open files than a process may have.
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(num_bytes)
    except FileNotFoundError:
        return b""
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    return found.st_size, found.st_mtime_ns


def _unreadable(path: Path, exc: OSError) -> StoreError:
    return StoreError(f"the logs in {path} cannot be read: {exc.strerror or exc}", "check who owns the file")
