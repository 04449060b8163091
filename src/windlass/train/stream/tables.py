"""Tables in a file that is mapped into memory: columns of numbers and strings that are read without loading the file.

The file consists of a line of JSON and the columns, each aligned to 8 bytes. All processes of a node share its pages.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windlass.train.checkpoint.storage import replacing
from windlass.train.stream.errors import StreamError

VERSION = 1


class BadTables(ValueError):
    """A file does not contain tables of this version."""


class Strings:
    """A column of strings that can be appended to."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.ends = array("Q", [0])
        self.text = bytearray()
        for value in values:
            self.append(value)

    def append(self, value: str) -> None:
        """Appends a string."""
        self.text += value.encode("utf-8", "surrogateescape")
        self.ends.append(len(self.text))


class StringColumn:
    """A column of strings in a file."""

    def __init__(self, ends: memoryview, text: memoryview) -> None:
        self._ends, self._text = ends, text

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return str(self._text[self._ends[number] : self._ends[number + 1]], "utf-8", "surrogateescape")


class Tables:
    """Columns of a file."""

    def __init__(self, path: Path) -> None:
        """Maps a file. Raises OSError, and BadTables if the file is truncated or from another version or byte order."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise BadTables(f"{path} is empty")
            self._map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            line = file.readline(1 << 20)
        try:
            found = json.loads(line)
            if found["tables"] != VERSION or found["order"] != sys.byteorder or found["size"] != size:
                raise BadTables(f"{path} is truncated, or was written by another version")
            self.head: dict[str, Any] = found["head"]
            self.numbers = {name: self._column(*place).cast("Q") for name, place in found["numbers"].items()}
            self.strings = {
                name: StringColumn(self._column(*ends).cast("Q"), self._column(*text))
                for name, (ends, text) in found["strings"].items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise error if isinstance(error, BadTables) else BadTables(f"{path}: {error}") from error

    def _column(self, start: int, length: int) -> memoryview:
        return self._map[start : start + length]


def write(
    path: Path, head: Mapping[str, Any], numbers: Mapping[str, array[int]], strings: Mapping[str, Strings]
) -> None:
    """Writes a file atomically, so that it is complete even after a power failure. Raises StreamError."""
    pieces: list[Any] = []
    at = 0

    def placed(piece: Any, num_bytes: int) -> list[int]:
        nonlocal at
        padding = -at % 8
        pieces.extend((b"\0" * padding, piece))
        start, at = at + padding, at + padding + num_bytes
        return [start, num_bytes]

    def column(values: array[int]) -> list[int]:
        return placed(values, 8 * len(values))

    def text(values: Strings) -> list[list[int]]:
        return [column(values.ends), placed(values.text, len(values.text))]

    found = {
        "tables": VERSION,
        "order": sys.byteorder,
        "head": head,
        "numbers": {name: column(values) for name, values in numbers.items()},
        "strings": {name: text(values) for name, values in strings.items()},
    }
    line = _line(found, at)
    try:
        with replacing(str(path)) as file:
            file.writelines((line, *pieces))
    except OSError as error:
        raise StreamError(f"{path}: {error.strerror or error}") from error


def _line(found: Mapping[str, Any], num_bytes: int) -> bytes:
    """Returns the first line of the file, whose padded length is added to all offsets."""
    length = 1024
    while True:
        moved = {
            **found,
            "size": length + num_bytes,
            "numbers": {name: _moved(place, length) for name, place in found["numbers"].items()},
            "strings": {name: [_moved(place, length) for place in both] for name, both in found["strings"].items()},
        }
        line = json.dumps(moved).encode()
        if len(line) < length:
            return line.ljust(length - 1) + b"\n"
        length *= 2


def _moved(place: list[int], by: int) -> list[int]:
    return [place[0] + by, place[1]]
