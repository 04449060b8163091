"""Merges the log and index files of all ranks of a run into one stream of lines, ordered by time.

For each attempt N and rank K, a run has two files that one writer appends to:

    RUN_DIR/attempt-N/rank-K.log    the bytes of stdout and stderr exactly as they were written
    RUN_DIR/attempt-N/rank-K.idx    16-byte records (time_ns, end_offset), little-endian u64: "at time_ns the log
                                    had grown to end_offset"; each is written after these bytes

The time of a line is that of the record in which its newline arrived. All lines of one record pass through the merge as
one block, so that the cost grows with the number of records rather than lines.
"""

from __future__ import annotations

import bisect
import heapq
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from windlass.errors import StoreError
from windlass.worker.protocol import INDEX_RECORD

MARKER = b"::windlass "
"""Prefix of structured lines, written by `windlass.train.report`."""

POLL_SECONDS = 0.05
_RECORDS_PER_READ = 4096
_PIECE_BYTES = 1 << 20
_WINDOW_BYTES = 64 << 10
"""Bytes per read while searching backward for newlines."""
_SHARED_BUFFER_BYTES = 8 << 20
_ATTEMPT_NAME = re.compile(r"attempt-([1-9][0-9]*)")
_LOG_NAME = re.compile(r"rank-(0|[1-9][0-9]*)\.log")
_STRUCTURED_LINE = re.compile(rb"^::windlass [^\n]*\n?", re.MULTILINE)
# A progress bar without a newline may be written just before the marker.
_STRUCTURED_END = re.compile(rb'::windlass \{"[^\n]*\}$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one rank."""

    time_ns: int
    """When the line's newline arrived, in nanoseconds since 1970 (UTC)."""
    attempt: int
    """Number of the attempt that wrote the line, from 1."""
    rank: int
    """Global rank, from 0."""
    data: bytes
    """Bytes of the line without the newline. Carriage returns, as of a progress bar, are kept."""
    newline: bool
    """Whether the line ends with a newline; False only for the last line of a log."""

    @property
    def text(self) -> str:
        """The line as text; invalid UTF-8 becomes U+FFFD."""
        return self.data.decode("utf-8", errors="replace")


class LogBlock(NamedTuple):
    """Complete lines of one rank that arrived together; sorts by time, then rank."""

    time_ns: int
    """When the lines arrived, in nanoseconds since 1970 (UTC)."""
    attempt: int
    """Number of the attempt that wrote the lines, from 1."""
    rank: int
    """Global rank, from 0."""
    data: bytes
    """One or more lines with their newlines; only the last line of a log may lack a newline."""

    @property
    def num_lines(self) -> int:
        """Number of lines in the block, including one without a newline."""
        return self.data.count(b"\n") + (not self.data.endswith(b"\n"))

    def lines(self) -> Iterator[LogLine]:
        """Yields the lines of the block."""
        time_ns, attempt, rank, data = self
        parts = data.split(b"\n")
        last = parts.pop()
        for part in parts:
            yield LogLine(time_ns, attempt, rank, part, True)
        if last:
            yield LogLine(time_ns, attempt, rank, last, False)

    def prefixed(self, prefix: bytes) -> bytes:
        """Returns the block with `prefix`, such as `b"[3] "`, before each line; no newline is added."""
        data = self.data
        if data.endswith(b"\n"):
            return prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
        return prefix + data.replace(b"\n", b"\n" + prefix)


class Chosen(TypedDict, total=False):
    """Selection of lines to read; without any field, all existing lines."""

    ranks: Collection[int] | None
    attempt: int | None
    since_ns: int | None
    """Lower time limit: only lines that arrived later are read. In nanoseconds since 1970 (UTC)."""
    tail: int | None
    """Number of last lines to read, in merged order. Raises ValueError if negative."""
    is_over: Callable[[], bool] | None
    """Function that returns whether no more lines will be written; None reads only the existing lines."""
    poll_seconds: float
    """Seconds between two checks for new lines."""


class RunLogs:
    """Logs of all attempts and ranks of one run; independent of the process that writes them.

    Memory holds a buffer for each rank, the longest line, and the lines of a `tail`. Lines of `windlass.train.report`
    are skipped. All methods raise `StoreError` if a file cannot be read; a run without logs has no lines.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def attempts(self) -> list[int]:
        """Returns the attempts that have a folder, in order."""
        return _numbers(self._run_dir, _ATTEMPT_NAME)

    def ranks(self, attempt: int) -> list[int]:
        """Returns the ranks that have a log in `attempt`, in order."""
        return _numbers(self._folder(attempt), _LOG_NAME)

    def read(self, **chosen: Unpack[Chosen]) -> Iterator[LogLine]:
        """Yields the existing lines, ordered by time within each attempt. The order of each rank's lines is always
        kept, even if its clock was set back.

        With `is_over`, new lines follow until it returns True and all lines are read. New attempts and ranks are
        followed too; with `attempt`, a later attempt ends the stream. Lines that arrive within one poll are ordered by
        time. A last line without a newline is yielded once its attempt or the run is over.
        """
        return (line for block in self.read_batches(**chosen) for line in block.lines())

    def read_batches(self, **chosen: Unpack[Chosen]) -> Iterator[LogBlock]:
        """Yields the lines of `read` in blocks, for fast printing: `out.write(block.prefixed(b"[3] "))`."""
        is_over = chosen.get("is_over") or (lambda: True)
        wanted, tail = chosen.get("attempt"), chosen.get("tail")
        followed: dict[int, _AttemptLogs] = {}
        while True:
            over = is_over()  # `is_over` is called before the files are read, so that no line is missed
            numbers = self.attempts()
            over = over or (wanted is not None and numbers[-1:] > [wanted])
            for number in numbers:
                if number not in followed and wanted in (None, number):
                    followed[number] = self._logs(number, chosen)
            logs = [followed[number] for number in sorted(followed)]
            ended = len(logs) if over else len(logs) - 1
            if tail is not None:
                yield from _last_blocks(logs, tail, ended=ended)
                tail = None
            # Earlier attempts are read too, because a slow node may still be writing their last lines.
            for place, one in enumerate(logs):
                one.discover()
                yield from _visible(one.blocks(final=place < ended))
            if over:
                return
            time.sleep(chosen.get("poll_seconds", POLL_SECONDS))

    def _logs(self, attempt: int, chosen: Chosen) -> _AttemptLogs:
        return _AttemptLogs(self._folder(attempt), attempt, chosen.get("ranks"), chosen.get("since_ns"))

    def _folder(self, attempt: int) -> Path:
        return self._run_dir / f"attempt-{attempt}"


class _AttemptLogs:
    """Logs of one attempt, each with the offset up to which it was read."""

    def __init__(self, folder: Path, attempt: int, ranks: Collection[int] | None, since_ns: int | None) -> None:
        self.logs: dict[int, _RankLog] = {}
        self._folder = folder
        self._attempt = attempt
        self._ranks = ranks
        self._since_ns = since_ns
        self.discover()

    def discover(self) -> None:
        """Adds ranks whose logs have appeared, starting at the offset for `since_ns`."""
        for rank in _numbers(self._folder, _LOG_NAME):
            if rank not in self.logs and (self._ranks is None or rank in self._ranks):
                self.logs[rank] = _RankLog(self._folder, self._attempt, rank, self._since_ns)

    def blocks(self, *, final: bool) -> Iterator[LogBlock]:
        """Yields the unread lines, merged. `final`: the attempt is over, so that nothing more will be written."""
        buffer_bytes = max(16 << 10, min(256 << 10, _SHARED_BUFFER_BYTES // max(1, len(self.logs))))
        ordered = [self.logs[rank] for rank in sorted(self.logs)]
        return heapq.merge(*(log.blocks(final=final, buffer_bytes=buffer_bytes) for log in ordered))


class _RankLog:
    """Log and index of one rank, and the offset up to which they were read."""

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
        """Number of complete records. A truncated last record does not count."""
        return _size_and_time(self._idx)[0] // INDEX_RECORD.size

    def seek(self, record: int) -> None:
        """Moves to the lines whose newline arrived in `record` or later."""
        self._record = record
        self._seen = min(self._records(record - 1, 1)[0][1], _size_and_time(self._log)[0]) if record else 0
        self._line = self._newline_before(self._seen) + 1
        self._seen_time_ns: int | None = None

    def blocks(self, *, final: bool, buffer_bytes: int) -> Iterator[LogBlock]:
        """Yields the unread lines, one block per record. The offset advances once all blocks were taken."""
        # `line` is the start of the first line not yielded yet; `seen` is the end of the search for newlines.
        line, seen, seen_time_ns = self._line, self._seen, self._seen_time_ns
        attempt, rank = self._attempt, self._rank
        buffer, start = b"", line
        for time_ns, end in self._unread_records(final):
            while seen < end:
                stop = end if end - seen <= _PIECE_BYTES else seen + _PIECE_BYTES
                if stop > start + len(buffer):
                    # The buffer grows with the line, so that rereading a long line costs constant time per byte.
                    start, buffer = line, read_at(self._log, line, max(buffer_bytes, stop - line + seen - line))
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
            data = read_at(self._log, line, seen - line)
            line = seen
            yield LogBlock(seen_time_ns, attempt, rank, data)
        self._line, self._seen, self._seen_time_ns = line, seen, seen_time_ns

    def seek_last(self, num_lines: int) -> bool:
        """Moves so that at least `num_lines` lines, including structured ones, are unread. Returns whether all lines
        are unread.
        """
        newline = self._newline_before(_size_and_time(self._log)[0], num_lines)
        records = range(self.num_records())
        record = bisect.bisect_right(records, newline, key=lambda i: self._records(i, 1)[0][1])
        self.seek(max(record, self.first_record))
        return newline < 0 or record <= self.first_record

    def unread_since(self) -> int:
        """Returns when the first unread line arrived, in nanoseconds since 1970 (UTC); earlier lines arrived no
        later.
        """
        return (self._records(self._record, 1) or [(self._time_beyond(self._record), 0)])[0][0]

    def _unread_records(self, final: bool) -> Iterator[tuple[int, int]]:
        """Yields the records after the last one read as (time_ns, end_offset), and finally the bytes that no record
        covers.
        """
        while records := self._records(self._record, _RECORDS_PER_READ):
            self._record += len(records)
            yield from records
        if final:
            time_ns = self._time_beyond(self._record)
            if self._since_ns is None or time_ns >= self._since_ns:
                yield time_ns, _size_and_time(self._log)[0]

    def _time_beyond(self, num_records: int) -> int:
        """Returns the time of bytes that no record covers: the log's modification time, never before the last
        record.
        """
        last = self._records(num_records - 1, 1) if num_records else []
        return max(_size_and_time(self._log)[1], last[0][0] if last else 0)

    def _records(self, first: int, num: int) -> list[tuple[int, int]]:
        data = read_at(self._idx, first * INDEX_RECORD.size, num * INDEX_RECORD.size)
        whole = len(data) - len(data) % INDEX_RECORD.size
        return list(INDEX_RECORD.iter_unpack(data[:whole]))

    def _first_since(self, since_ns: int) -> int:
        """Returns the first record not older than `since_ns`, by binary search."""
        return bisect.bisect_left(range(self.num_records()), since_ns, key=lambda i: self._records(i, 1)[0][0])

    def _newline_before(self, offset: int, nth: int = 1) -> int:
        """Returns the offset of the nth newline before `offset`, counted backward; -1 if there are fewer."""
        stop = offset
        while stop > 0 and nth > 0:
            begin = max(0, stop - _WINDOW_BYTES)
            window = read_at(self._log, begin, stop - begin)
            count = window.count(b"\n")
            stop = begin
            if count >= nth:
                place = len(window)
                for _ in range(nth):
                    place = window.rfind(b"\n", 0, place)
                return begin + place
            nth -= count
        return -1 if nth else offset


def _last_blocks(attempts: list[_AttemptLogs], tail: int, *, ended: int) -> list[LogBlock]:
    """Returns the last `tail` lines of all attempts, the first `ended` of which are over. Moves every offset to the
    end.
    """
    if tail < 0:
        raise ValueError(f"tail must not be negative, but is {tail}")
    found: list[LogBlock] = []
    for place in range(len(attempts) - 1, -1, -1):
        blocks = _last_blocks_of(attempts[place], tail, final=place < ended)
        tail -= sum(block.num_lines for block in blocks)
        found[:0] = blocks
    return found


def _last_blocks_of(logs: _AttemptLogs, tail: int, *, final: bool) -> list[LogBlock]:
    wanted = tail
    while True:
        from_start = [log.seek_last(wanted) for log in logs.logs.values()]
        read_since = {
            rank: log.unread_since()
            for (rank, log), is_all in zip(logs.logs.items(), from_start, strict=True)
            if not is_all
        }
        kept: deque[tuple[int, LogBlock]] = deque()
        num_lines, of_rank = 0, Counter[int]()
        for block in _visible(logs.blocks(final=final)):
            kept.append((block.num_lines, block))
            num_lines += block.num_lines
            of_rank[block.rank] += block.num_lines
            while kept and num_lines - kept[0][0] >= tail:
                num_lines -= kept.popleft()[0]
        # The search ends once no unread line could be among the last `tail` lines.
        if num_lines >= tail and all(
            of_rank[rank] >= tail or since_ns < kept[0][1].time_ns for rank, since_ns in read_since.items()
        ):
            break
        if all(from_start):
            break
        wanted *= 4  # structured lines were counted but are hidden, so more lines are needed
    blocks = [block for _, block in kept]
    if num_lines > tail:
        blocks[0] = blocks[0]._replace(data=blocks[0].data.split(b"\n", num_lines - tail)[-1])
    return blocks


def _visible(blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
    """Yields the blocks without structured lines. A progress bar before a structured line is kept up to its marker."""
    for block in blocks:
        if MARKER not in block.data:
            yield block
        elif data := without_structured(block.data):
            yield block._replace(data=data)


def without_structured(data: bytes) -> bytes:
    """Returns output without the structured lines of `windlass.train.report`."""
    return _STRUCTURED_END.sub(b"", _STRUCTURED_LINE.sub(b"", data))


def _numbers(folder: Path, name: re.Pattern[str]) -> list[int]:
    try:
        return sorted(int(match[1]) for path in folder.iterdir() if (match := name.fullmatch(path.name)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise _unreadable(folder, exc) from exc


def read_at(path: Path, offset: int, num_bytes: int) -> bytes:
    """Returns at most `num_bytes` bytes of a file from `offset` on; none of a missing file. Raises StoreError."""
    # The file is opened for each buffer, because a thousand ranks would exceed the limit of open files.
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
