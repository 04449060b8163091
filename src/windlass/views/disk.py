"""Disk space of runs on this machine: output of `windlass du`, `prune` and `rm`."""

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
    """Size of the run's folder in bytes, including logs, code, results and checkpoints."""
    result_files: int
    """Number of result files in the run's folder."""
    result_bytes: int
    checkpoint_bytes: int
    """Size of the checkpoints in the run's folder in bytes."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk space of all records on this machine."""

    home: str
    """Path of the home folder, `$WINDLASS_HOME`."""
    bytes: int
    """Total size of the home folder in bytes."""
    runs: tuple[RunDisk, ...]
    """Runs, largest first."""
    others: Mapping[str, int]
    """Bytes of all other entries in the home folder by name: data sets, clusters, the record itself."""


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """A run that `prune` has removed or kept."""

    id: str
    phase: Phase
    age_seconds: float
    """Seconds since the end of the run."""
    bytes: int
    """Size of the run's folder in bytes."""
    result_files: int
    """Number of result files in the run's folder."""
    kept_for: str = ""
    """Why the run was kept: `results`, or a sentence; empty if it was removed."""


@dataclass(frozen=True, slots=True)
class PrunedRuns:
    """Result of `prune`, oldest runs first."""

    removed: tuple[PrunedRun, ...]
    kept: tuple[PrunedRun, ...]
    """Runs that only `--force` would have removed."""
    is_dry: bool
    """Whether this was a dry run that removed nothing."""


@dataclass(frozen=True, slots=True)
class RemovedRuns:
    """Result of `rm`."""

    removed: tuple[str, ...]
    """Run ids in the order given."""
