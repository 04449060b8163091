"""Sets of files: what `windlass data` prints."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.storage.progress import Copied, Refusal
from windlass.storage.verify import Verified


@dataclass(frozen=True, slots=True)
class DataCopied:
    """What `data copy` did."""

    source: str
    destination: str
    copied: Copied


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a set."""

    name: str
    bytes: int
    digest: str
    """By the manifest; empty where that does not have the file in this version."""


@dataclass(frozen=True, slots=True)
class DataCopyPreview:
    """What `data copy --dry-run` found: nothing was written."""

    source: str
    destination: str
    files: tuple[DataFile, ...]
    """Files that would be copied, by name; without digests, since no file is read."""
    bytes: int
    """Of these files."""
    unchanged_files: int
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class DataVerified:
    """What `data verify` found."""

    address: str
    found: Verified

    @property
    def ok(self) -> bool:
        """Whether all files are as the manifest says."""
        return not self.found.problems


@dataclass(frozen=True, slots=True)
class CachedData:
    """A set in the cache of this machine."""

    digest: str
    """Empty for one of which only a part was fetched."""
    folder: str
    """Where its files are; after `data stage --on`, the claim that has them."""
    files: int
    bytes: int
    sources: tuple[str, ...]
    """Addresses that had it when they were last read."""
    used_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class StagedData(CachedData):
    """What `data stage` did."""

    fetched_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DataCacheList:
    """The cache of this machine."""

    sets: tuple[CachedData, ...]
    """The least recently used first."""


@dataclass(frozen=True, slots=True)
class DataList:
    """What `data ls` shows."""

    address: str
    digest: str
    """Digest of the set; empty if the manifest cannot be read or does not match the files."""
    files: tuple[DataFile, ...]
    problem: str
    """Why the manifest cannot be read, or how the files differ from it; empty without a problem or a manifest."""
