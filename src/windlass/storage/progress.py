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
    """Whether a request or a disk failed; False if the file's name or type makes it unsuitable for the destination."""
    passes: bool = False
    """Whether a later copy may succeed, because the store was only busy or unreachable."""


@dataclass
class Progress:
    """Progress of a copy, read by the display."""

    num_files: int = 0
    num_bytes: int = 0
    files_done: int = 0
    bytes_done: int = 0
    """Bytes of files and parts at the destination, including those of an earlier copy."""
    bytes_moved: int = 0
    """Bytes transferred by this copy."""
    num_unchanged: int = 0
    is_listing: bool = True
    waits_for: str = ""
    """Process that holds the lock of the set; empty if the copy does not wait."""


@dataclass
class Counter:
    """Counts the bytes of one file or part in the progress of a copy. Thread-safe."""

    progress: Progress
    lock: threading.Lock = field(repr=False)
    num_bytes: int = 0

    def set(self, num_bytes: int) -> None:
        """Sets the number of bytes at the destination, including those of an earlier copy."""
        with self.lock:
            self.progress.bytes_done += num_bytes - self.num_bytes
            self.num_bytes = num_bytes

    def moved(self, num_bytes: int) -> None:
        """Adds bytes that this copy has transferred."""
        with self.lock:
            self.progress.bytes_done += num_bytes
            self.progress.bytes_moved += num_bytes
            self.num_bytes += num_bytes


@dataclass(frozen=True)
class Preview:
    """Preview of a copy."""

    entries: tuple[Entry, ...]
    """Source entries of the files to copy, largest first."""
    num_unchanged: int
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class Copied:
    """Result of a copy."""

    digest: str
    """Digest of the data set at the destination."""
    num_files: int
    set_bytes: int
    files: Mapping[str, File]
    """Files at the destination by name; empty if a copy note showed that nothing has changed."""
    num_copied: int
    num_bytes: int
    """Bytes transferred."""
    num_unchanged: int
    refused: tuple[Refusal, ...] = ()
    """Files that the destination does not accept, or that changed or disappeared during the copy, by name."""
    seconds: float = 0.0
