"""Log streams: the process of a host writes one JSON line for each line of output; readers get them in pages.

Each JSON line is `[milliseconds, text]`. A last line without a newline was cut off by the end of its writer, and is
ignored.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from windlass.engines.sagemaker.service import VALIDATION, LogPage, Refused

MAX_LINE_BYTES: Final = 256 << 10
"""Maximum bytes of one event of CloudWatch Logs."""
PAGE_BYTES: Final = 1 << 20
"""Bytes of a stream that one page reads, up to the end of a line."""
STREAM: Final = re.compile(r"(?P<job>[^/]+)/(?P<file>algo-[0-9]+-[0-9]+)")


class LogWriter:
    """Writes one stream. Single-threaded."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """`clock` returns Unix seconds. Raises OSError, also if the file exists."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._clock = clock
        self._rest = b""
        self._last = 0

    def feed(self, data: bytes) -> None:
        """Adds bytes of output and writes the complete lines. Raises OSError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > MAX_LINE_BYTES:
            piece, self._rest = _cut(self._rest)
            lines.append(piece)
        self._write(lines)

    def close(self) -> None:
        """Writes the remaining output, which has no newline. Raises OSError."""
        if self._rest:
            self._write([self._rest])
        os.close(self._file)

    def _write(self, lines: list[bytes]) -> None:
        self._last = max(self._last, int(self._clock() * 1000))  # time stamps of a stream must not decrease
        framed = b""
        for line in lines:
            while len(line) > MAX_LINE_BYTES:
                piece, line = _cut(line)
                framed += self._frame(piece)
            framed += self._frame(line)
        view = memoryview(framed)
        while view:
            view = view[os.write(self._file, view) :]

    def _frame(self, line: bytes) -> bytes:
        return json.dumps([self._last, line.decode(errors="replace")], ensure_ascii=False).encode() + b"\n"


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Splits a line after the last complete character that fits into one event."""
    at = MAX_LINE_BYTES
    while at > MAX_LINE_BYTES - 4 and line[at] & 0xC0 == 0x80:  # never cut inside a UTF-8 character
        at -= 1
    return line[:at], line[at:]


def streams(folder: Path, job: str) -> list[str]:
    """Returns the streams of a job, in the order of their starts and hosts."""
    try:
        files = [one.name for one in folder.iterdir()]
    except FileNotFoundError:
        return []
    numbered = sorted((int(one.split("-")[2]), int(one.split("-")[1]), one) for one in files)
    return [f"{job}/{one}" for _, _, one in numbered]


def read_page(path: Path, since: int, token: str | None) -> LogPage:
    """Returns a page of a stream, with arguments as `Service.read_log`. Raises Refused, OSError."""
    with path.open("rb") as file:
        start = _offset(file.fileno(), token)
        file.seek(start)
        lines: list[tuple[int, str]] = []
        end, taken = start, 0
        while taken < PAGE_BYTES and (line := file.readline()).endswith(b"\n"):
            end += len(line)
            milliseconds, text = json.loads(line)
            if token is not None or milliseconds >= since:
                taken += len(line)
                lines.append((milliseconds, text))
    return LogPage(lines, str(end))


def _offset(file: int, token: str | None) -> int:
    if token is None:
        return 0
    is_number = token.isascii() and token.isdigit() and len(token) < 19
    at = int(token) if is_number else -1
    if at < 0 or (at > 0 and os.pread(file, 1, at - 1) != b"\n"):
        raise Refused(VALIDATION, f"{token[:40]!r} is no token of this stream", "leave it out to read from the start")
    return at
