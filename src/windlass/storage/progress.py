"""Progress and result of a copy."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass.storage.manifest import File
from windlass.storage.place import Entry


@dataclass(frozen=True, slots=True)
class Refusal:
    """A file that was not copied."""

    name: str
    why: str
    is_failure: bool = False
    """Whether a request or a disk has failed: neither its name nor what it is keeps it from the destination."""
    passes: bool = False
    """Whether a later copy may succeed: the store was busy, or did not answer."""


@dataclass
class Progress:
    """How far a copy is; read by the one who shows it."""

    num_files: int = 0
    """To be copied."""
    num_bytes: int = 0
    files_done: int = 0
    bytes_done: int = 0
    """Of files and of parts, those that an earlier copy has left included."""
    bytes_moved: int = 0
    """By this copy."""
    num_unchanged: int = 0
    is_listing: bool = True
    waits_for: str = ""
    """The process that has the lock of the set; empty where none is waited for."""


@dataclass
class Counter:
    """Counts the bytes of one file, or of one part, in the progress of a copy. Thread-safe."""

    progress: Progress
    lock: threading.Lock = field(repr=False)
    """Protects the progress."""
    num_bytes: int = 0

    def set(self, num_bytes: int) -> None:
        """Set how many bytes are at the destination, including those of an earlier copy."""
        with self.lock:
            self.progress.bytes_done += num_bytes - self.num_bytes
            self.num_bytes = num_bytes

    def moved(self, num_bytes: int) -> None:
        """Add bytes that this copy has moved."""
        with self.lock:
            self.progress.bytes_done += num_bytes
            self.progress.bytes_moved += num_bytes
            self.num_bytes += num_bytes


@dataclass(frozen=True)
class Preview:
    """What a copy would do."""

    entries: tuple[Entry, ...]
    """Files to copy, as the source lists them, the largest first."""
    num_unchanged: int
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class Copied:
    """What a copy has done."""

    digest: str
    """Of the set at the destination."""
    num_files: int
    set_bytes: int
    files: Mapping[str, File]
    """Of the destination, by name; empty where a note showed that nothing has changed."""
    num_copied: int
    num_bytes: int
    """That were moved."""
    num_unchanged: int
    refused: tuple[Refusal, ...] = ()
    """Files that cannot be at the destination, and that were changed or lost during the copy, by name."""
    seconds: float = 0.0
