"""Masks the values of the job's secrets in the output of ranks before it is stored, sent or searched.

Only exact values of at least 8 characters are masked. Output that may be the beginning of a value is held back until
the next read, because a value may be split between two reads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

VARIABLES = "WINDLASS_SECRET_VARIABLES"
"""Environment variable with the names of secret variables, separated by commas."""
FOLDER = "WINDLASS_SECRET_FOLDER"
"""Environment variable with the path of a folder that has one file per secret variable. Only the file names are
read."""
MIN_CHARS = 8
"""Minimum length of masked values, because shorter values also occur in ordinary words and numbers."""
MARK = b"***"


def secret_values(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Returns the values of the secret variables in an environment, stripped of white space, the longest first."""
    names = environ.get(VARIABLES, "").split(",")
    if FOLDER in environ:
        with contextlib.suppress(OSError):
            names += os.listdir(environ[FOLDER])
    values = {value for name in names if len(value := environ.get(name, "").strip()) >= MIN_CHARS}
    return tuple(sorted(map(os.fsencode, values), key=len, reverse=True))


def masked(data: bytes, values: tuple[bytes, ...]) -> bytes:
    """Replaces the values in the data by `***`. Overlapping values are replaced together."""
    return _marked(data, _found(data, values))


def _marked(data: bytes, found: list[tuple[int, int]]) -> bytes:
    pieces, end = [], 0
    for start, stop in found:
        pieces += [data[end:start], MARK]
        end = stop
    return b"".join([*pieces, data[end:]]) if pieces else data


def _found(data: bytes, values: tuple[bytes, ...]) -> list[tuple[int, int]]:
    """Returns the start and end of each value in the data, in order. Overlapping ranges are joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted((at, at + len(value)) for value in values for at in _places(data, value)):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


class Mask:
    """Masks secret values in a stream of output."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        self._values = values
        self._have_newlines = any(b"\n" in value for value in values)
        self._kept_back = b""

    def feed(self, data: bytes) -> bytes:
        """Adds output. Returns the masked output that cannot contain the beginning of an incomplete value."""
        data = self._kept_back + data
        found, end = _found(data, self._values), len(data)
        if self._have_newlines or not data.endswith(b"\n"):
            end -= max((_beginning_at_end(data, value) for value in self._values), default=0)
        # A value that overlaps the bytes held back must be held back completely.
        end = min((start for start, stop in found if start < end < stop), default=end)
        self._kept_back = data[end:]
        return _marked(data[:end], [one for one in found if one[1] <= end])

    def end(self) -> bytes:
        """Returns the remaining output, masked. Must be called at the end of the stream."""
        data, self._kept_back = masked(self._kept_back, self._values), b""
        return data


def _beginning_at_end(data: bytes, value: bytes) -> int:
    """Returns the number of bytes at the end of the data that may be the beginning of the value."""
    tail = data[max(0, len(data) - len(value) + 1) :]
    return next((len(tail) - at for at in _places(tail, value[:1]) if value.startswith(tail[at:])), 0)


def _places(data: bytes, value: bytes) -> Iterator[int]:
    at = data.find(value)
    while at >= 0:
        yield at
        at = data.find(value, at + len(value))
