"""Reads text files that users write: job files, targets files, cluster files, manifests of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from windlass.errors import JobFileError, Problem

MAX_BYTES: Final = 1 << 20


def read_text(path: Path, shown: str) -> str:
    """Reads a text file of the user. Raises JobFileError if it is missing, not readable, too large or not UTF-8."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise JobFileError([Problem(shown, "", f"cannot be read: {error.strerror}", "check the path")]) from error
    return decoded(data, shown)


def decoded(data: bytes, shown: str) -> str:
    """Decodes the content of a file. Raises JobFileError if it is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise JobFileError([Problem(shown, "", "is larger than 1 MiB", "a job file has some lines, not data")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = Problem(shown, "", f"is not UTF-8 text: byte {error.start}", "save it as UTF-8")
        raise JobFileError([problem]) from error
