"""Checkpoints of a run: output of `windlass checkpoints`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A checkpoint as described by its name and manifest."""

    name: str
    path: str
    step: int
    """Number of training steps of the whole run at the save."""
    epoch: int
    """Epoch in which training continues."""
    created_at: float
    """Creation time in Unix seconds; without a manifest, the modification time of the folder."""
    bytes: int
    complete: bool
    """Whether the manifest is valid."""
    state: str
    """State according to the manifest: `complete`, `unfinished`, `damaged`, `unreadable` or `unknown-format`."""
    attempt: int
    """Attempt that saved the checkpoint."""
    world_size: int
    """Number of ranks that saved the checkpoint."""
    problem: str
    """Why the checkpoint is not complete; empty if it is."""


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """The checkpoints of a run."""

    id: str
    folder: str
    checkpoints: tuple[CheckpointView, ...]
    """Checkpoints, newest first."""


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint after a verification that has read every byte."""

    name: str
    state: str
    """Result of the verification: `verified`, `damaged`, `unreadable`, `unknown-format` or `unfinished`."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoints:
    """Result of `checkpoints verify`."""

    id: str
    ok: bool
    """Whether all checkpoints are verified."""
    checkpoints: tuple[VerifiedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class PrunedCheckpoints:
    """Result of `checkpoints prune`."""

    id: str
    removed: tuple[str, ...]
    set_aside: tuple[str, ...]
    """Former names of damaged checkpoints that were renamed."""
    kept: tuple[str, ...]
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """Result of `checkpoints export`."""

    id: str
    name: str
    """Name of the checkpoint."""
    path: str
    bytes: int
