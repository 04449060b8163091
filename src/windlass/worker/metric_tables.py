"""Reads metrics from the files of training libraries: CSV logs, and the `trainer_state.json` of transformers."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, BinaryIO

from windlass.worker.event_file import Damaged, Point

MAX_STATE_BYTES = 16 << 20
"""Larger `trainer_state.json` files are not read: parsing blocks other threads of the process."""
MAX_CSV_BYTES = 64 << 20
MAX_LINE_BYTES = 16 << 10
PIECE_BYTES = 1 << 20
CSV_NAME = re.compile(
    r"(?i)(?:.*[^a-z])?(?:metrics?|results?|history|progress|logs?|training|loss(?:es)?)(?:[^a-z].*)?\.(?:csv|log)"
)
"""Names of CSV files that may have metrics; the header and all rows decide."""
STEP_COLUMNS = ("step", "epoch")
"""Columns that number the rows, the preferred one first."""
MISSING = ("", "NA", "None")
"""Cells without a value, as Lightning and Keras write them."""
MARK_BYTES = 64
"""Number of bytes before the end of the last read that are compared. If they have changed, the file was rewritten."""


class CsvFile:
    """Reads the rows that were appended to one CSV file since the last read.

    When a new metric is logged, Lightning rewrites the file with the same rows and more columns. These rows are not
    yielded again.
    """

    def __init__(self, name: str) -> None:
        """`name` is the name of the file. Together with the header, it shows whether Lightning wrote the file."""
        self._is_lightning_name = name == "metrics.csv"
        self._header = self._mark = b""
        self._columns: list[str] = []
        self._offset = 0
        self._rows = self._digest = 0
        """Number of rows that were read, and a digest of their cells."""
        self._rewritten_at: float | None = None
        """Modification time of a new version of the file with fewer rows than the old one; None without one."""

    @property
    def source(self) -> str:
        """Source of the values: `lightning` or `csv`."""
        return "lightning" if self._is_lightning_name and set(STEP_COLUMNS) <= set(self._columns) else "csv"

    def skip(self, file: BinaryIO) -> None:
        """Skips the rows that the file has now, which another run or attempt has written. Raises OSError."""
        self._header = file.readline(MAX_LINE_BYTES)
        self._offset = file.seek(0, os.SEEK_END)
        self._columns = columns_of(self._header)
        self._mark = self._marked(file)

    def read(self, file: BinaryIO) -> Generator[list[Point], None, None]:
        """Yields the values of each new row. An incomplete last line is left for the next read.

        Raises OSError, and Damaged if the file is too large or a later row has a cell that is not a number. A file
        whose header or first row does not look like metrics yields nothing.
        """
        status = os.fstat(file.fileno())
        if status.st_size > MAX_CSV_BYTES:
            raise Damaged(f"it has {status.st_size:,} bytes, and at most {MAX_CSV_BYTES:,} are read")
        header = file.readline(MAX_LINE_BYTES)
        if not header.endswith(b"\n"):
            return
        is_same = header == self._header and self._marked(file) == self._mark
        if not is_same and not self._is_found_again(file, header, status.st_mtime):
            return
        try:
            for line in self._new_lines(file) if self._columns else ():
                cells = cells_of(line, self._columns)
                if cells is None and not self._rows:
                    self._columns = []  # a table, but not one of metrics
                    return
                if cells is None:
                    self._offset -= len(line) + 1
                    raise Damaged(f"row {self._rows + 1} has a cell that is no number")
                self._count(cells)
                yield points_of(cells, status.st_mtime)
        finally:
            self._mark = self._marked(file)

    def _is_found_again(self, file: BinaryIO, header: bytes, changed_at: float) -> bool:
        """Sets the position of the first new row in a file that was rewritten. Returns False while the file has fewer
        rows than before, because its writer may not have finished. If the next call finds the file unchanged, all its
        rows are new.
        """
        rows, digest, is_same = self._rows, self._digest, self._rewritten_at == changed_at
        self._header, self._offset, self._rows, self._digest = header, len(header), 0, 0
        self._columns = columns_of(header)
        if not rows:
            return True
        for line in self._new_lines(file):
            self._count(cells_of(line, self._columns) or {})
            if self._rows == rows:
                break
        if (self._rows, self._digest) == (rows, digest):
            return True
        is_shorter = self._rows < rows and not is_same
        self._offset, self._rows, self._digest, self._rewritten_at = len(header), 0, 0, None
        if is_shorter:
            self._header, self._rows, self._digest, self._rewritten_at = b"", rows, digest, changed_at
        return not is_shorter

    def _new_lines(self, file: BinaryIO) -> Iterator[bytes]:
        """Yields the complete lines after the last one that was read. Raises Damaged if a line is too long."""
        file.seek(self._offset - 1)
        if file.read(1) != b"\n":
            self._offset += len(file.readline(MAX_LINE_BYTES))  # the rest of a line that was skipped
        while True:
            file.seek(self._offset)
            piece = file.read(PIECE_BYTES)
            lines = piece.split(b"\n")[:-1]
            for line in lines:
                self._offset += len(line) + 1
                yield line
            if not lines:
                if len(piece) > MAX_LINE_BYTES:
                    raise Damaged("a line is too long")
                return

    def _count(self, cells: dict[str, float]) -> None:
        self._rows += 1
        self._digest = hash((self._digest, *sorted(repr(cell) for cell in cells.items())))

    def _marked(self, file: BinaryIO) -> bytes:
        begin = max(self._offset - MARK_BYTES, 0)
        file.seek(begin)
        return file.read(self._offset - begin)


class TrainerStates:
    """Reads the entries of `log_history` in the `trainer_state.json` files of one output folder.

    The Trainer of transformers writes its whole history into each `checkpoint-N` folder; entries that were read before
    are skipped.
    """

    source = "trainer"

    def __init__(self) -> None:
        self._known: set[int] = set()

    def skip(self, file: BinaryIO) -> None:
        """Skips the entries that the file has now, which another run or attempt wrote. Raises OSError, Damaged."""
        for _ in self.read(file):
            pass

    def read(self, file: BinaryIO) -> Generator[list[Point], None, None]:
        """Yields the values of each new entry. Raises OSError, and Damaged if the file has no valid history, as it may
        while it is being written.
        """
        status = os.fstat(file.fileno())
        if status.st_size > MAX_STATE_BYTES:
            raise Damaged(f"it has {status.st_size:,} bytes, and at most {MAX_STATE_BYTES:,} are read")
        for entry in _history(file.read(MAX_STATE_BYTES)):
            key = hash(repr(sorted(entry.items())))
            if key not in self._known:
                self._known.add(key)
                yield points_of(entry, status.st_mtime)


def columns_of(header: bytes) -> list[str]:
    """Returns the column names in the first line of a CSV file; empty if the line is not a header of metrics.

    Such a header has a column `step` or `epoch` and at least one other; its names are unique, and none is empty or a
    number.
    """
    try:
        [names] = csv.reader([header.decode("utf-8-sig").strip()], strict=True)
    except (ValueError, csv.Error):
        return []
    names = [name.strip() for name in names]
    is_header = len(names) > 1 and len(set(names)) == len(names) and all(map(_is_name, names))
    return names if is_header and any(name in STEP_COLUMNS for name in names) else []


def cells_of(line: bytes, columns: Sequence[str]) -> dict[str, float] | None:
    """Returns the numbers in a line of a CSV file, by column; empty if the number of cells is wrong, and None if a cell
    has a value that is not a number.
    """
    try:
        [cells] = csv.reader([line.decode().strip()], strict=True) if line.strip() else [[]]
        if len(cells) != len(columns):
            return {}
        texts = {name: cell.strip() for name, cell in zip(columns, cells)}  # noqa: B905 - see Python 3.9
        return {name: _number(text) for name, text in texts.items() if text not in MISSING}
    except (ValueError, csv.Error):
        return None


def points_of(values: dict[str, float], time: float) -> list[Point]:
    """Returns the values of a row or an entry as points. Their step is the value named `step`, else the one named
    `epoch`; these two values do not become points.
    """
    step = next((values[name] for name in STEP_COLUMNS if name in values), None)
    return [Point(name, step, time, value) for name, value in values.items() if name not in STEP_COLUMNS]


def _is_name(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return bool(text)
    return False


def _number(text: str) -> float:
    """Parses a number. Raises ValueError also for `1_000`, which float() accepts but no program writes."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _history(data: bytes) -> list[dict[str, float]]:
    """Returns the numbers of each entry of a trainer's state. Raises Damaged."""
    try:
        history: Any = json.loads(data)["log_history"]
        return [
            {name: float(value) for name, value in entry.items() if type(value) in (int, float)} for entry in history
        ]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Damaged(f"it has no log_history ({type(error).__name__})") from error
