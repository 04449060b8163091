"""Why a checkpoint is not loaded: typed outcomes of reading it, and the errors that a restore raises.

Standard library only, Python 3.9: the command line, the writer process and a training script all use it.
"""

from __future__ import annotations

import enum
import errno
import os
from dataclasses import dataclass

from windlass.stores.errors import StoreError


class Fault(enum.Enum):
    """What keeps a checkpoint from being verified. Only `damaged` means that its bytes are wrong."""

    UNFINISHED = "unfinished"
    """It has no manifest: its save is under way, or was cut off."""
    DAMAGED = "damaged"
    """A length or checksum was compared and is wrong, or a file that the manifest lists is missing."""
    UNREADABLE = "unreadable"
    """The file system failed with an error other than "file not found". It may be intact: it is never removed."""
    UNKNOWN_FORMAT = "unknown-format"
    """Written by a newer version of Windlass or by another program. It may be intact: it is never removed."""


@dataclass(frozen=True)
class Problem:
    """One reason why a checkpoint is not verified."""

    fault: Fault
    text: str
    """Which file, and what was found."""

    def __str__(self) -> str:
        return self.text


class BadCheckpoint(ValueError):
    """A checkpoint that must not be loaded; the message says why."""

    def __init__(self, text: str, fault: Fault = Fault.DAMAGED) -> None:
        super().__init__(text)
        self.fault = fault


class UnknownFormat(BadCheckpoint):
    """A checkpoint that this version cannot read."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Fault.UNKNOWN_FORMAT)


class NoSuchPart(BadCheckpoint):
    """A part of a checkpoint was asked for that it does not have."""


class UnreadableCheckpoint(OSError):
    """A checkpoint is there and could not be read, also after retries. All ranks of an attempt raise it together."""


def worst(problems: list[Problem]) -> Fault | None:
    """The fault that decides what is done: proved damage first, then what could not be read; None without any."""
    found = {problem.fault for problem in problems}
    order = (Fault.DAMAGED, Fault.UNREADABLE, Fault.UNKNOWN_FORMAT, Fault.UNFINISHED)
    return next((fault for fault in order if fault in found), None)


def described(error: OSError, path: str) -> str:
    """`/runs/x/manifest.json: Stale file handle (ESTALE)`: the path of the error, or else `path`."""
    where = error.filename if isinstance(error.filename, str) else path
    if error.errno is None:
        return f"{where}: {error}"
    if isinstance(error, StoreError):
        return str(error)
    return f"{where}: {os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
