"""Data sets: output of `windlass data`."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.storage.progress import Copied, Refusal
from windlass.storage.verify import Verified


@dataclass(frozen=True, slots=True)
class DataCopied:
    """Result of `data copy`."""

    source: str
    destination: str
    copied: Copied


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file in a data set."""

    name: str
    bytes: int
    digest: str
    """Digest from the manifest; empty if the manifest does not contain this version of the file."""


@dataclass(frozen=True, slots=True)
class DataCopyPreview:
    """Result of `data copy --dry-run`, which writes nothing."""

    source: str
    destination: str
    files: tuple[DataFile, ...]
    """Files that would be copied, sorted by name; without digests, because no file is read."""
    bytes: int
    """Total size of the files in bytes."""
    unchanged_files: int
    refused: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class DataVerified:
    """Result of `data verify`."""

    address: str
    found: Verified

    @property
    def ok(self) -> bool:
        """Whether all files match the manifest."""
        return not self.found.problems


@dataclass(frozen=True, slots=True)
class CachedData:
    """A data set in the cache of this machine."""

    digest: str
    """Digest of the data set; empty if the set was only partially fetched."""
    folder: str
    """Folder with the files; after `data stage --on`, the claim that contains them."""
    files: int
    bytes: int
    sources: tuple[str, ...]
    """Addresses that contained this data set when they were last read."""
    used_at: float
    """Time of last use in Unix seconds."""


@dataclass(frozen=True, slots=True)
class StagedData(CachedData):
    """Result of `data stage`."""

    fetched_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DataCacheList:
    """Content of the data cache of this machine."""

    sets: tuple[CachedData, ...]
    """Data sets, least recently used first."""


@dataclass(frozen=True, slots=True)
class DataList:
    """Result of `data ls`."""

    address: str
    digest: str
    """Digest of the set; empty if the manifest cannot be read or does not match the files."""
    files: tuple[DataFile, ...]
    problem: str
    """Why the manifest cannot be read, or how the files differ from it; empty without a problem or a manifest."""
