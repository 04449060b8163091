"""The code that a plan ships: its request as `windlass plan` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.runs.events import EMPTY, Entry


class FileSize(Entry):
    """A file of the code."""

    name: str
    bytes: int


class IgnoredFiles(Entry):
    """Files and folders that are not shipped, by the line of an ignore file."""

    source: str
    """File and line of the pattern."""
    pattern: str
    entries: int


class CodeRequest(Entry):
    """The request of a plan's step of kind `code`: the archive that is shipped."""

    folder: str
    digest: str
    """SHA-256 of the archive."""
    bytes: int
    """Of the archive."""
    pieces: tuple[Mapping[str, Any], ...]
    """The objects that carry it."""
    unpacked_bytes: int = 0
    """Of the folder's files that are shipped."""
    files: tuple[FileSize, ...] = ()
    """Of the folder, by name."""
    left_out: tuple[IgnoredFiles, ...] = ()
    added: Mapping[str, int] = EMPTY
    """Number and bytes of the files of Windlass itself."""
