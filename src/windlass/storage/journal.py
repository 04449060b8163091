"""Journal of a copy: records which files were written, so that the next copy after a kill does not fetch them again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from windlass.storage.manifest import BadManifest, File, from_line, line
from windlass.storage.place import system_errors
from windlass.worker import process


class Journal:
    """Journal of written files, one per line. Entries not synced before a reboot count as not written."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the journal. Raises StorageError."""
        self._path = path
        self._boot = process.boot_id()
        found, self._num_settled = _read(path, self._boot)
        self._num_lines = len(found)
        """Number of journaled files; the first `_num_settled` of them are known to be on disk."""
        self.files = {one.name: one for one in found}
        """Files of an earlier copy, by name."""
        with system_errors(str(path)):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            self._file.write(b"\n")  # a killed copy may have left a truncated last line
        self._write({"boot": self._boot})
        self._first_bytes = os.fstat(self.descriptor).st_size
        """Size of the journal before any file was added, including files added by other processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        has_none = self._num_lines == 0 and os.fstat(self.descriptor).st_size == self._first_bytes
        self._file.close()
        if has_none:
            self.clear()

    def add(self, one: File) -> None:
        """Records a written file. Raises StorageError."""
        append(self.descriptor, one)
        self.added()

    def added(self) -> None:
        """Counts a file that another process has added to the journal."""
        self._num_lines += 1

    @property
    def descriptor(self) -> int:
        """File descriptor of the journal, for `append` in another process."""
        return self._file.fileno()

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Marks entries added before the block as durable when the block, which syncs their files, ends. Raises
        StorageError.
        """
        found = self._num_lines
        yield
        if found > self._num_settled:
            self._num_settled = found
            self._write({"settled": found})

    def clear(self) -> None:
        """Empties the journal, because the manifest now contains all of its files."""
        self._path.unlink(missing_ok=True)

    def _write(self, found: dict[str, object]) -> None:
        with system_errors(str(self._path)):
            _write(self.descriptor, found)


class NoJournal(Journal):
    """Journal of a preview, which writes nothing."""

    def __init__(self) -> None:
        self.files = {}


def append(descriptor: int, one: File) -> None:
    """Appends a written file to a journal. Raises StorageError."""
    with system_errors("the journal of the copy"):
        _write(descriptor, line(one))


def _write(descriptor: int, found: Mapping[str, object]) -> None:
    os.write(descriptor, json.dumps(found, separators=(",", ":")).encode() + b"\n")


def files_of(path: Path) -> dict[str, File]:
    """Returns the files that an earlier copy has written, by name. Raises StorageError."""
    return {one.name: one for one in _read(path, process.boot_id())[0]}


def _read(path: Path, boot: str) -> tuple[list[File], int]:
    """Returns the journal's files, without those that a reboot may have lost, and how many of them are known to be
    durable.
    """
    try:
        lines = path.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    found: list[File] = []
    settled, known = 0, ""
    for one in [*lines, json.dumps({"boot": boot}).encode()]:
        try:
            read = json.loads(one)
            if isinstance(read, dict) and "boot" in read:
                if known and read["boot"] != known:
                    del found[settled:]
                known = read["boot"]
            elif isinstance(read, dict) and "settled" in read:
                settled = min(len(found), max(settled, int(read["settled"])))
            else:
                found.append(from_line(read))
        except (ValueError, TypeError, BadManifest):
            continue
    return found, settled
