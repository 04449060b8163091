"""Reads parts of the logs of a run for the page, by byte ranges and index records; never a whole file."""

from __future__ import annotations

import bisect
import functools
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from windlass.cli.formatting import visible
from windlass.errors import UsageError
from windlass.runs.logs import MARKER, LogLine, RunLogs, read_at
from windlass.views.pages import LogMatches, LogRow, LogsPage, LogWindow
from windlass.web.site import Site, reading_engine
from windlass.worker.protocol import INDEX_RECORD

Query = Mapping[str, str]

LINES: Final = 200
"""Lines of a window by default."""
MAX_LINES: Final = 1_000
MAX_LINE: Final = 2_000
"""Characters of a line on the page; the rest is cut."""
WINDOW_BYTES: Final = 128 << 10
"""Bytes of a window, so that a page of long lines stays small."""
MAX_WINDOWS: Final = 32
"""Maximum number of windows that are read to find a line of text, if they contain only structured lines."""
SEARCH_BYTES: Final = 4 << 20
"""Bytes that a search reads at once."""
SEARCH_SECONDS: Final = 0.5
"""Seconds after which a search returns what it has found, with the position at which the next one continues."""
MAX_MATCHES: Final = 200
_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_]|.)?")


def logs_page(site: Site, run_id: str, given: Query) -> LogsPage:
    """Returns the end of the newest log, or the chosen part. Raises NoSuchRun, UsageError, StoreError."""
    with site.records.open() as store:
        status = store.status(run_id, with_progress=False)
        is_remote = reading_engine(run_id, store).is_remote
        reader = RunLogs(store.run_dir(run_id))
        attempts = reader.attempts()
        window = _window(run_id, store.run_dir(run_id), reader, given)
        ranks = len(reader.ranks(window.attempt)) if attempts else 0
    where = f"these are the lines that were copied to this machine; all: windlass logs {run_id}" if is_remote else ""
    return LogsPage(run_id, status.phase, tuple(attempts), ranks, window, where)


def log_window(site: Site, run_id: str, given: Query) -> LogWindow:
    """Returns a part of a log: `lines` lines after byte `offset`, those before byte `before`, or else the last ones.

    `attempt` and `rank` choose the log; without a rank the output of all ranks is merged, and has no offsets. Raises
    NoSuchRun, UsageError, StoreError.
    """
    with site.records.open() as store:
        store.status(run_id, with_progress=False)  # raises NoSuchRun
        folder = store.run_dir(run_id)
    return _window(run_id, folder, RunLogs(folder), given)


def _window(run_id: str, folder: Path, reader: RunLogs, given: Query) -> LogWindow:
    attempts = reader.attempts()
    attempt = number_of(given, "attempt")
    rank = number_of(given, "rank")
    if attempt is None:
        attempt = attempts[-1] if attempts else 1
    lines = min(MAX_LINES, number_of(given, "lines") or LINES)
    if rank is None:
        return _merged(run_id, reader, attempt, lines)
    log = RankLog(folder, attempt, rank)
    offset, before = number_of(given, "offset"), number_of(given, "before")
    if offset is not None:
        begin, end, rows = log.forward(offset, lines)
    else:
        begin, end, rows = log.backward(log.size if before is None else before, lines)
    return LogWindow(run_id, attempt, rank, begin, end, log.whole, tuple(rows))


def _merged(run_id: str, reader: RunLogs, attempt: int, lines: int) -> LogWindow:
    rows, num_bytes = [], 0
    for line in reversed(list(reader.read(attempt=attempt, tail=lines))):
        rows.append(row_of(line))
        num_bytes += len(rows[-1].text)
        if num_bytes > WINDOW_BYTES:
            break
    return LogWindow(run_id, attempt, None, 0, 0, 0, tuple(reversed(rows)))


def search_log(site: Site, run_id: str, given: Query) -> LogMatches:
    """Returns the lines of one rank's log that contain `text`, from byte `offset` on. A lower-case `text` ignores case.

    A search of a long log returns early: `next_offset` is where it continues. Raises NoSuchRun, UsageError, StoreError.
    """
    attempt, rank = number_of(given, "attempt") or 1, number_of(given, "rank") or 0
    text = given.get("text", "")
    if not text or "\n" in text:
        raise UsageError("a search needs a text of one line")
    with site.records.open() as store:
        store.status(run_id, with_progress=False)  # raises NoSuchRun
        log = RankLog(store.run_dir(run_id), attempt, rank)
    found, following = log.search(text, number_of(given, "offset") or 0)
    return LogMatches(run_id, attempt, rank, text, tuple(found), following, log.size)


class RankLog:
    """The log of one rank in one attempt, with its index. A missing log is empty. Methods raise StoreError."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        """`folder` is the folder of the run. Raises OSError."""
        self._rank = rank
        self._log = folder / f"attempt-{attempt}" / f"rank-{rank}.log"
        self._index = self._log.with_suffix(".idx")
        self.size = _size(self._log)
        """Size in bytes when the log was opened."""
        self._num_records = _size(self._index) // INDEX_RECORD.size

    @functools.cached_property
    def whole(self) -> int:
        """Size without the last line if that is incomplete: it is read again until it ends, or fills a window."""
        tail = self._read(max(0, self.size - WINDOW_BYTES), WINDOW_BYTES)
        cut = tail.rfind(b"\n") + 1
        return self.size - len(tail) + cut if cut or len(tail) == self.size else self.size

    def forward(self, offset: int, lines: int) -> tuple[int, int, list[LogRow]]:
        """Returns the first `lines` lines that begin at `offset` or later, with the begin and the end of the window."""
        begin = min(offset, self.size)
        if begin and self._read(begin - 1, 1) != b"\n":
            rest = self._read(begin, WINDOW_BYTES).find(b"\n")
            begin = min(self.size, begin + WINDOW_BYTES) if rest < 0 else begin + rest + 1
        end, rows = begin, list[LogRow]()
        for _ in range(MAX_WINDOWS):  # a script may report hundreds of values between two lines of text
            end, found = self._rows(end, self._read(end, WINDOW_BYTES), lines)
            rows += found
            if rows or end >= self.size:
                break
        return begin, min(end, self.whole), rows

    def backward(self, end: int, lines: int) -> tuple[int, int, list[LogRow]]:
        """Returns the last `lines` lines before `end`, with the begin and the end of the window."""
        end = first = min(end, self.size)
        rows: list[LogRow] = []
        for _ in range(MAX_WINDOWS):
            stop, first = first, max(0, first - WINDOW_BYTES)
            data = self._read(first, stop - first)
            cut = data.find(b"\n") + 1 if first else 0
            _, rows = self._rows(first + cut, data[cut:], WINDOW_BYTES)
            first = first + cut if first + cut < stop else first
            if rows or not first:
                break
        rows = rows[-lines:]
        return rows[0].offset if rows else first, min(end, self.whole), rows

    def search(self, text: str, offset: int) -> tuple[list[LogRow], int | None]:
        """Returns the lines that contain `text` from `offset` on, and the offset at which the next search continues:
        None at the end of the log.
        """
        wanted, folds = text.encode(errors="replace"), text == text.lower()
        found: list[LogRow] = []
        give_up = time.monotonic() + SEARCH_SECONDS
        while offset < self.size:
            data = self._read(offset, SEARCH_BYTES)
            last = data.rfind(b"\n") + 1
            if last and offset + len(data) < self.size:
                data = data[:last]
            seen = data.lower() if folds else data
            at = 0
            while (hit := seen.find(wanted, at)) >= 0:
                start = data.rfind(b"\n", 0, hit) + 1
                stop = data.find(b"\n", hit)
                stop = len(data) if stop < 0 else stop
                at = stop + 1
                if not data.startswith(MARKER, start):
                    place = offset + start
                    found.append(self._row(place, data[start:stop], self._arrivals(place, place + 1)))
                if len(found) >= MAX_MATCHES:
                    return found, offset + at if offset + at < self.size else None
            offset += len(data)
            if not data or time.monotonic() > give_up:
                break
        return found, offset if offset < self.size else None

    def _rows(self, begin: int, data: bytes, lines: int) -> tuple[int, list[LogRow]]:
        """Returns the lines of text in `data`, which begins at `begin`, and the end of the last line that was read."""
        rows: list[LogRow] = []
        arrivals = self._arrivals(begin, begin + len(data))
        at = 0
        while at < len(data) and len(rows) < lines:
            stop = data.find(b"\n", at)
            if stop < 0 and at and begin + len(data) < self.size:
                break  # the next window begins with this line
            stop = len(data) if stop < 0 else stop
            if not data.startswith(MARKER, at):
                rows.append(self._row(begin + at, data[at:stop], arrivals))
            at = stop + 1
        return min(begin + at, self.size), rows

    def _row(self, offset: int, data: bytes, arrivals: Sequence[tuple[int, int]]) -> LogRow:
        first = bisect.bisect_right(arrivals, offset, key=lambda record: record[1])
        arrived = arrivals[min(first, len(arrivals) - 1)][0] if arrivals else 0
        shown = data.rstrip(b"\r").rsplit(b"\r", 1)[-1][: 4 * MAX_LINE]  # of a progress bar the last state
        return row_of(LogLine(arrived, 0, self._rank, shown, True), offset)

    def _arrivals(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the index records (time_ns, end_offset) of the bytes from `begin` to `end`."""
        records = range(self._num_records)
        first = bisect.bisect_right(records, begin, key=lambda at: self._record(at)[1])
        last = bisect.bisect_left(records, end, key=lambda at: self._record(at)[1])
        first = min(first, max(0, self._num_records - 1))
        return self._records(first, last + 1 - first)

    def _record(self, number: int) -> tuple[int, int]:
        return self._records(number, 1)[0]

    def _records(self, first: int, number: int) -> list[tuple[int, int]]:
        data = read_at(self._index, first * INDEX_RECORD.size, number * INDEX_RECORD.size)
        return list(INDEX_RECORD.iter_unpack(data[: len(data) - len(data) % INDEX_RECORD.size]))

    def _read(self, offset: int, num_bytes: int) -> bytes:
        return read_at(self._log, offset, min(num_bytes, max(0, self.size - offset)))


def row_of(line: LogLine, offset: int = -1) -> LogRow:
    """Returns a line for the page, without control characters. Of a progress bar, only the last state is kept."""
    text = line.text.rstrip("\r").rsplit("\r", 1)[-1]
    text = visible(_ESCAPE.sub("", text))
    return LogRow(offset, line.time_ns / 1e9, line.rank, f"{text[:MAX_LINE]} …" if len(text) > MAX_LINE else text)


def number_of(given: Query, name: str) -> int | None:
    """Returns a whole number of the query; None without one. Raises UsageError."""
    text = given.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18 or not text.isascii():
        raise UsageError(f"{name} is a whole number from 0, not '{text[:40]}'")
    return int(text)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
