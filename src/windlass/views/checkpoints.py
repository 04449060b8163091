"""Checkpoints of a run: what `windlass checkpoints` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """One checkpoint, as its name and manifest describe it."""

    name: str
    path: str
    step: int
    """Steps done over the whole run."""
    epoch: int
    """The epoch to continue with."""
    created_at: float
    """Unix seconds; of the folder where there is no manifest."""
    bytes: int
    complete: bool
    """Whether its manifest is valid."""
    state: str
    """`complete`, `unfinished`, `damaged`, `unreadable` or `unknown-format`, by its manifest."""
    attempt: int
    """The attempt that saved it."""
    world_size: int
    """Number of ranks that saved it."""
    problem: str
    """Why it is not complete."""


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """The checkpoints of a run."""

    id: str
    folder: str
    checkpoints: tuple[CheckpointView, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """One checkpoint of which every byte was read."""

    name: str
    state: str
    """`verified`, `damaged`, `unreadable`, `unknown-format` or `unfinished`."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoints:
    """What `checkpoints verify` found."""

    id: str
    ok: bool
    """Whether all are verified."""
    checkpoints: tuple[VerifiedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class PrunedCheckpoints:
    """What `checkpoints prune` removed."""

    id: str
    removed: tuple[str, ...]
    set_aside: tuple[str, ...]
    """Damaged ones that were renamed, by the name that they had."""
    kept: tuple[str, ...]
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """The file that `checkpoints export` wrote."""

    id: str
    name: str
    """The checkpoint."""
    path: str
    bytes: int
