"""The metrics of a run: every value of a curve, in one file of the run's folder.

The file has JSON lines. Each line is a batch of points of one series, as a node reported it:

    {"attempt": 1, "node": 0, "seq": 12, "rank": 0, "source": "report", "name": "loss",
     "steps": [1, 2], "times": [1790000000.0, 1790000000.1], "values": [0.7, 0.65]}

A node numbers its batches, so a supervisor that reads the same event twice adds its points once. Lines are only
appended, until the file exceeds a limit; then the file is replaced by one with fewer points, which keeps the extremes.
A line that was cut by a crash, or damaged, is skipped.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

from windlass.worker.metrics import kept_points

FILE: Final = "metrics.jsonl"
"""Name of the file in the folder of a run."""
MAX_BYTES: Final = 32 << 20
"""Size of the file at which its points are thinned."""
MAX_POINTS: Final = 200_000
"""Points of all series that are left when the file is thinned."""
MAX_SERIES: Final = 2_000
"""Maximum number of series of a run; points of further series are not kept."""
MAX_RANKS: Final = 1 << 20
MAX_CHARS: Final = 1_000
"""Maximum characters of the name of a series."""
SOURCE: Final = re.compile(r"[a-z-]{0,20}")
"""Text of a source, which becomes part of the names of folders."""
TAIL_BYTES: Final = 256
"""Bytes by which a `MetricsReader` recognises the file that it has read."""
_NAME: Final = re.compile(rb'"name": ?("(?:[^"\\]|\\.)*")')
"""Name of the metric in a line."""
NOT_FINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Text in JSON of the numbers that JSON lacks."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a run: the values of one metric from one source and one rank, as reported, attempt by attempt.

    The columns `attempts`, `steps`, `times` and `values` have the same length.
    """

    name: str
    """Name of the metric, such as `loss` or `eval/accuracy`."""
    source: str
    """Where the values come from: `report`, `log`, `tensorboard`, `trainer`, `lightning`, `csv`, or `node` for values
    that Windlass measures."""
    rank: int
    """Rank that reported the values; for a file, the lowest rank of the node that read the file."""
    attempts: tuple[int, ...] = ()
    """Attempt of each point. Where the attempt changes, training was restarted, and the steps may go back."""
    steps: tuple[float | None, ...] = ()
    """Step of each point; None where the source has none. Epochs count as steps in a source that only has epochs."""
    times: tuple[float, ...] = ()
    """Unix seconds of each point."""
    values: tuple[float, ...] = ()
    """Values; may be NaN or infinite."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def key(self) -> tuple[str, str, int]:
        """Identity of the series in its run: name, source and rank."""
        return self.name, self.source, self.rank


@dataclass(slots=True)
class _Columns:
    """Points of a series while a file is read."""

    attempts: list[int] = field(default_factory=list)
    steps: list[float | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class MetricsFile:
    """Writer of the metrics of one run. A process that supervises the run has one."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES, max_points: int = MAX_POINTS) -> None:
        """`folder` is the folder of the run; the file is created with the first points.

        A file of more than `max_bytes` is thinned to about `max_points`; one that remains large, again when it
        has doubled.
        """
        self.path = folder / FILE
        self._max_bytes = max_bytes
        self._max_points = max_points
        self._seen: dict[tuple[int, int], int] | None = None
        """For each attempt and node, the number of its last batch in the file; None before the file was read."""

    def append(self, attempt: int, node: int, seq: int, batches: Sequence[Mapping[str, Any]]) -> None:
        """Appends the batches of one event of a node, unless the file has them. Raises OSError.

        Each batch has `rank`, `source`, `name`, `steps`, `times` and `values` (see the module).
        """
        if self._seen is None:
            self._seen = _last_batches_in(self.path)
        if self._seen.get((attempt, node), 0) >= seq:
            return
        head = {"attempt": attempt, "node": node, "seq": seq}
        text = "".join(f"{json.dumps({**batch, **head}, separators=(',', ':'))}\n" for batch in batches)
        with open(self.path, "ab") as file:
            if file.tell() and not _ends_with_newline(self.path):
                text = f"\n{text}"  # a crash has cut the last line
            file.write(text.encode())
            size = file.tell()
        self._seen[attempt, node] = seq
        if size > self._max_bytes:
            self.thin(self._max_points)
            # each attempt keeps points of each series: with many, the file remains large, and thinning it takes seconds
            self._max_bytes = max(self._max_bytes, 2 * self.path.stat().st_size)

    def thin(self, max_points: int) -> None:
        """Replaces the file by one with at most about `max_points` points, which keeps extremes. Raises OSError."""
        replace_file(self.path, compacted(self.path.read_bytes(), max_points).encode())


def read_metrics(path: Path) -> tuple[Series, ...]:
    """Returns the series in a file of metrics, in the order of their first points; empty without a file.

    Raises OSError if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return parse_metrics(file)
    except FileNotFoundError:
        return ()


class MetricsReader:
    """Reader of a file of metrics that grows: each call parses only what was appended since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._columns: dict[tuple[str, str, int], _Columns] = {}
        self._attempt = 0
        """Attempt of the last line."""
        self._end, self._tail = 0, b""
        """Position up to which the file was read, and the bytes before it, which differ in a file that was replaced."""
        self._series: tuple[Series, ...] = ()

    def read(self) -> tuple[Series, ...]:
        """Returns what `read_metrics` returns, without a last line that is incomplete. Raises OSError."""
        with self._lock:
            try:
                with open(self._path, "rb") as file:
                    self._read(file)
            except FileNotFoundError:
                self._begin()
            return self._series

    def _read(self, file: BinaryIO) -> None:
        file.seek(self._end - len(self._tail))
        is_same = file.read(len(self._tail)) == self._tail
        data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        lines = _in_order(line for line in map(_parsed, data.split(b"\n")) if line is not None)
        if not is_same or (lines and lines[0]["attempt"] < self._attempt):  # replaced, or with late lines
            self._begin()
            self._read(file)
        elif data:
            _add(self._columns, lines)
            self._attempt = lines[-1]["attempt"] if lines else self._attempt
            self._end, self._tail = self._end + len(data), (self._tail + data)[-TAIL_BYTES:]
            self._series = _as_series(self._columns)


def read_names(path: Path) -> tuple[str, ...]:
    """Returns the names of the metrics in a file, without parsing points. Raises OSError, also without a file."""
    with open(path, "rb") as file:
        found = dict.fromkeys(match[1] for match in map(_NAME.search, file) if match is not None)
    names: list[str] = []
    for text in found:
        with contextlib.suppress(ValueError):  # a damaged line
            names.append(json.loads(text))
    return tuple(filter(None, names))


def parse_metrics(lines: Iterable[bytes]) -> tuple[Series, ...]:
    """Returns the series in lines of a file of metrics. Damaged lines are skipped."""
    return _series_in(line for line in map(_parsed, lines) if line is not None)


def _series_in(lines: Iterable[dict[str, Any]]) -> tuple[Series, ...]:
    found: dict[tuple[str, str, int], _Columns] = {}
    _add(found, _in_order(lines))
    return _as_series(found)


def _in_order(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns lines by attempt: logs of an attempt may be read after the next has begun."""
    return sorted(lines, key=itemgetter("attempt"))


def _add(found: dict[tuple[str, str, int], _Columns], lines: Iterable[dict[str, Any]]) -> None:
    for line in lines:
        if not line["values"]:
            continue
        key = (line["name"], line["source"], line["rank"])
        if key not in found and len(found) >= MAX_SERIES:
            continue
        columns = found.setdefault(key, _Columns())
        columns.attempts += [line["attempt"]] * len(line["values"])
        columns.steps += line["steps"]
        columns.times += line["times"]
        columns.values += line["values"]


def _as_series(found: Mapping[tuple[str, str, int], _Columns]) -> tuple[Series, ...]:
    return tuple(
        Series(*key, tuple(one.attempts), tuple(one.steps), tuple(one.times), tuple(one.values))
        for key, one in found.items()
    )


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file of metrics atomically, also while other threads or processes do. Raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    part.write_bytes(data)
    part.replace(path)


def compacted(data: bytes, max_points: int) -> str:
    """Returns the text of a file with at most about `max_points` of the points in the file `data`.

    A `MetricsFile` that continues the text adds no batch that is in `data`. Damaged lines are left out.
    """
    lines = [line for line in map(_parsed, data.split(b"\n")) if line is not None]
    return as_text(thinned(_series_in(lines), max_points), _last_batches(lines))


def as_text(series: Iterable[Series], seen: Mapping[tuple[int, int], int]) -> str:
    """Returns the text of a file with these series; `seen` has each attempt and node's last batch number."""
    lines = []
    for (attempt, node), seq in seen.items():
        head = {"attempt": attempt, "node": node, "seq": seq, "rank": 0, "source": "", "name": ""}
        lines.append({**head, "steps": [], "times": [], "values": []})
    for one in series:
        for attempt, first, last in _stretches(one.attempts):
            lines.append(
                {"attempt": attempt, "node": 0, "seq": 0, "rank": one.rank, "source": one.source, "name": one.name}
                | {"steps": one.steps[first:last], "times": one.times[first:last]}
                | {"values": [as_json(value) for value in one.values[first:last]]}
            )
    return "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)


def as_json(value: float) -> float | str:
    """Returns a value for JSON: a number, or "nan", "inf" or "-inf"."""
    return value if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def thinned(series: Sequence[Series], max_points: int) -> tuple[Series, ...]:
    """Returns series with at most about `max_points` points together: the longest lose points, the short ones none."""
    limit = _limit_of(sorted(map(len, series)), max_points)
    return tuple(thin(one, limit) for one in series)


def thin(series: Series, max_points: int) -> Series:
    """Returns a series with at most about `max_points` points, which keep the extremes.

    The first and the last point of each attempt are kept, so that each restart stays visible.
    """
    if len(series) <= max(max_points, 4):
        return series
    kept: list[int] = []
    width = math.ceil(len(series) / max(max_points // 4, 1))
    for _, first, last in _stretches(series.attempts):
        kept += [first + index for index in kept_points(series.values[first:last], width)]
    columns = (series.attempts, series.steps, series.times, series.values)
    attempts, steps, times, values = (tuple(column[index] for index in kept) for column in columns)
    return replace(series, attempts=attempts, steps=steps, times=times, values=values)  # type: ignore[arg-type]


def _limit_of(lengths: Sequence[int], max_points: int) -> int:
    """Returns the limit of points for each series so that all have at most `max_points`; `lengths` is sorted."""
    left = max_points
    for index, length in enumerate(lengths):
        share = left // (len(lengths) - index)
        if length > share:
            return max(share, 4)
        left -= length
    return max_points


def _stretches(attempts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields each attempt with the first index of its points and the one after its last."""
    first = 0
    for index in range(1, len(attempts) + 1):
        if index == len(attempts) or attempts[index] != attempts[first]:
            yield attempts[first], first, index
            first = index


def _last_batches_in(path: Path) -> dict[tuple[int, int], int]:
    try:
        with open(path, "rb") as file:
            return _last_batches(line for line in map(_parsed, file) if line is not None)
    except FileNotFoundError:
        return {}


def _last_batches(lines: Iterable[dict[str, Any]]) -> dict[tuple[int, int], int]:
    """Returns for each attempt and node the number of its last batch."""
    seen: dict[tuple[int, int], int] = {}
    for line in lines:
        key = (line["attempt"], line["node"])
        seen[key] = max(seen.get(key, 0), line["seq"])
    return seen


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Returns a line of the file with its values as floats; None if it is damaged."""
    try:
        match json.loads(line):
            case {
                "attempt": int(), "node": int(), "seq": int(), "rank": int(), "source": str(), "name": str(),
                "steps": list(steps), "times": list(times), "values": list(values),
            } as found if len(steps) == len(times) == len(values) and _is_plausible(found):  # fmt: skip
                return {
                    **found,
                    "steps": [None if step is None else _finite(step) for step in steps],
                    "times": [_finite(time) for time in times],
                    "values": [NOT_FINITE[value] if isinstance(value, str) else float(value) for value in values],
                }
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    return None


def _is_plausible(line: Mapping[str, Any]) -> bool:
    """Whether the numbers and texts of a line are within limits that no run exceeds."""
    numbers = (line["attempt"], line["node"], line["rank"])
    is_text = len(line["name"]) <= MAX_CHARS and SOURCE.fullmatch(line["source"]) is not None
    return is_text and all(0 <= number < MAX_RANKS for number in numbers)


def _finite(number: Any) -> float:
    """Returns a number as a float. Raises ValueError for NaN and infinity, which JSON lacks."""
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{found} is not finite")
    return found
