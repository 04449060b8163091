"""Reasons why a checkpoint cannot be loaded, and the errors that a restore raises.

Standard library only, Python 3.9, because the writer process uses this module.
"""

from __future__ import annotations

import enum
import errno
import os
from dataclasses import dataclass

from windlass.stores.errors import StoreError


class Fault(enum.Enum):
    """Why a checkpoint is not verified. Only `damaged` means that its bytes are wrong."""

    UNFINISHED = "unfinished"
    """The checkpoint has no manifest: its save is still running, or was interrupted."""
    DAMAGED = "damaged"
    """A length or checksum does not match, or a file in the manifest is missing."""
    UNREADABLE = "unreadable"
    """The file system failed with an error other than "file not found". The checkpoint may be intact and is never
    removed."""
    UNKNOWN_FORMAT = "unknown-format"
    """Written by a newer Windlass or by another program. Such a checkpoint may be intact and is never removed."""


@dataclass(frozen=True)
class Problem:
    """One reason why a checkpoint is not verified."""

    fault: Fault
    text: str
    """The file, and the difference or error found."""

    def __str__(self) -> str:
        return self.text


class BadCheckpoint(ValueError):
    """A checkpoint that must not be loaded. The message gives the reason."""

    def __init__(self, text: str, fault: Fault = Fault.DAMAGED) -> None:
        super().__init__(text)
        self.fault = fault


class UnknownFormat(BadCheckpoint):
    """A checkpoint that this version cannot read."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Fault.UNKNOWN_FORMAT)


class NoSuchPart(BadCheckpoint):
    """The requested part does not exist in the checkpoint."""


class UnreadableCheckpoint(OSError):
    """A checkpoint exists and could not be read, even after retries. All ranks of an attempt raise this error
    together.
    """


def worst(problems: list[Problem]) -> Fault | None:
    """Returns the fault that decides how to proceed: proved damage first, then unreadable files; None without
    problems.
    """
    found = {problem.fault for problem in problems}
    order = (Fault.DAMAGED, Fault.UNREADABLE, Fault.UNKNOWN_FORMAT, Fault.UNFINISHED)
    return next((fault for fault in order if fault in found), None)


def described(error: OSError, path: str) -> str:
    """Returns text such as `/runs/x/manifest.json: Stale file handle (ESTALE)`, with the path of the error, else
    `path`.
    """
    where = error.filename if isinstance(error.filename, str) else path
    if error.errno is None:
        return f"{where}: {error}"
    if isinstance(error, StoreError):
        return str(error)
    return f"{where}: {os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
