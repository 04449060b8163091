"""Runs on the disk of this machine: what `windlass du`, `prune` and `rm` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windlass.runs.phase import Phase


@dataclass(frozen=True, slots=True)
class RunDisk:
    """Disk space of a run on this machine."""

    id: str
    phase: Phase
    bytes: int
    """Of its folder: logs, code, results and checkpoints that are in it."""
    result_files: int
    """Files of its results, where those are in its folder."""
    result_bytes: int
    checkpoint_bytes: int
    """Bytes of the checkpoints in its folder."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk space of all records on this machine."""

    home: str
    """The folder, `$WINDLASS_HOME`."""
    bytes: int
    """Total of the folder."""
    runs: tuple[RunDisk, ...]
    """The largest first."""
    others: Mapping[str, int]
    """Bytes of everything else in the folder by its name: sets of data, clusters, the record itself."""


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """A run that ended long ago."""

    id: str
    phase: Phase
    age_seconds: float
    """Since its end."""
    bytes: int
    """Of its folder."""
    result_files: int
    """Files of its results in that folder."""
    kept_for: str = ""
    """Why it was not removed: `results`, or a sentence; empty for one that was."""


@dataclass(frozen=True, slots=True)
class PrunedRuns:
    """What `prune` removed, oldest first."""

    removed: tuple[PrunedRun, ...]
    kept: tuple[PrunedRun, ...]
    """Runs that `--force` would also have removed."""
    is_dry: bool
    """Whether nothing was removed."""


@dataclass(frozen=True, slots=True)
class RemovedRuns:
    """What `rm` removed."""

    removed: tuple[str, ...]
    """Ids, in the order in which they were given."""
