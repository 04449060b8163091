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
    """The data with a mark in place of each value."""
    for value in values:
        if value in data:
            data = data.replace(value, MARK)
    return data


class Mask:
    """Masks values in a stream."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        self._values = values
        self._have_newlines = any(b"\n" in value for value in values)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on by now of all that was fed."""
        data = masked(self._held + data, self._values)
        num_held = 0
        if self._have_newlines or not data.endswith(b"\n"):
            num_held = max(_beginning_at_end(data, value) for value in self._values)
        self._held = data[len(data) - num_held :]
        return data[: len(data) - num_held]

    def end(self) -> bytes:
        """What was held back: the stream has ended."""
        data, self._held = self._held, b""
        return data


def _beginning_at_end(data: bytes, value: bytes) -> int:
    """How many of the last bytes of the data are the beginning of a value, which may go on in the next read."""
    tail = data[max(0, len(data) - len(value) + 1) :]
    return next((len(tail) - at for at in _places(tail, value[:1]) if value.startswith(tail[at:])), 0)


def _places(data: bytes, byte: bytes) -> Iterator[int]:
    at = data.find(byte)
    while at >= 0:
        yield at
        at = data.find(byte, at + 1)
