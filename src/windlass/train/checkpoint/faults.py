"""Why a checkpoint is not loaded: typed outcomes of reading it, and the errors that a restore raises.

Standard library only, Python 3.9: the command line, the writer process and a training script all use it.
"""

from __future__ import annotations

import enum
import errno
import os
from dataclasses import dataclass


class Fault(enum.Enum):
    """What keeps a checkpoint from being verified. Only `damaged` says anything about its bytes."""

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
    """For a person: which file, and what was found."""

    def __str__(self) -> str:
        return self.text


class BadCheckpoint(ValueError):
    """A checkpoint that must not be loaded; the message says why."""

    fault = Fault.DAMAGED


class UnknownFormat(BadCheckpoint):
    """A checkpoint that this version cannot read."""

    fault = Fault.UNKNOWN_FORMAT


class UnfinishedCheckpoint(BadCheckpoint):
    """A checkpoint without a manifest."""

    fault = Fault.UNFINISHED


class UnreadableCheckpoint(OSError):
    """A checkpoint is there and could not be read, also after retries. All ranks of an attempt raise it together."""


def worst(problems: list[Problem]) -> Fault | None:
    """The fault that decides what is done: proved damage before all, then what could not be read; None without any."""
    found = {problem.fault for problem in problems}
    order = (Fault.DAMAGED, Fault.UNREADABLE, Fault.UNKNOWN_FORMAT, Fault.UNFINISHED)
    return next((fault for fault in order if fault in found), None)


def errno_text(error: OSError) -> str:
    """`Stale file handle (ESTALE)`; the message of an error without a number."""
    if error.errno is None:
        return str(error)
    return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"


def described(error: OSError, path: str) -> str:
    """`/runs/x/manifest.json: Stale file handle (ESTALE)`: the path of the error, or else `path`."""
    where = error.filename if isinstance(error.filename, str) else path
    return f"{where}: {errno_text(error)}"
