"""Masks the values of the job's secrets in what ranks print, before it is kept, sent or searched.

Exact values of at least 8 characters. A value that two reads share is masked too: what may be the beginning of one is
held back at the end of a read, until more of the output has come.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

VARIABLES = "WINDLASS_SECRET_VARIABLES"
"""Variable: the names of the variables that have secrets, parted by commas."""
FOLDER = "WINDLASS_SECRET_FOLDER"
"""Variable: a folder with a file of the name of each such variable. What is in the files is not read."""
MIN_CHARS = 8
"""Shorter values are parts of ordinary words and numbers."""
MARK = b"***"


def secret_values(environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """The values of secrets in an environment, the longest first; without the white space around them."""
    names = environ.get(VARIABLES, "").split(",")
    if FOLDER in environ:
        with contextlib.suppress(OSError):
            names += os.listdir(environ[FOLDER])
    values = {value for name in names if len(value := environ.get(name, "").strip()) >= MIN_CHARS}
    return tuple(sorted(map(os.fsencode, values), key=len, reverse=True))


def masked(data: bytes, values: tuple[bytes, ...]) -> bytes:
    """The data with a mark in place of each value; values that overlap have one mark."""
    return _marked(data, _found(data, values))


def _marked(data: bytes, found: list[tuple[int, int]]) -> bytes:
    pieces, end = [], 0
    for start, stop in found:
        pieces += [data[end:start], MARK]
        end = stop
    return b"".join([*pieces, data[end:]]) if pieces else data


def _found(data: bytes, values: tuple[bytes, ...]) -> list[tuple[int, int]]:
    """Where values begin and end in the data, in order; those that overlap are joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted((at, at + len(value)) for value in values for at in _places(data, value)):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


class Mask:
    """Masks values in a stream."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        self._values = values
        self._have_newlines = any(b"\n" in value for value in values)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on by now of all that was fed."""
        data = self._held + data
        found, end = _found(data, self._values), len(data)
        if self._have_newlines or not data.endswith(b"\n"):
            end -= max(_beginning_at_end(data, value) for value in self._values)
        # Another value may end behind what is held back, or be the beginning of it: then it is held back too.
        end = min((start for start, stop in found if start < end < stop), default=end)
        self._held = data[end:]
        return _marked(data[:end], [one for one in found if one[1] <= end])

    def end(self) -> bytes:
        """What was held back: the stream has ended."""
        data, self._held = masked(self._held, self._values), b""
        return data


def _beginning_at_end(data: bytes, value: bytes) -> int:
    """How many of the last bytes of the data are the beginning of a value, which may go on in the next read."""
    tail = data[max(0, len(data) - len(value) + 1) :]
    return next((len(tail) - at for at in _places(tail, value[:1]) if value.startswith(tail[at:])), 0)


def _places(data: bytes, value: bytes) -> Iterator[int]:
    at = data.find(value)
    while at >= 0:
        yield at
        at = data.find(value, at + len(value))
