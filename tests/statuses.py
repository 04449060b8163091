"""What a test expects a status to have: its root cause, its condition, its checkpoint."""

from __future__ import annotations

from windlass.runs.events import CheckpointChanged, ConditionChanged, RootCause
from windlass.runs.record import Status


def cause_of(status: Status) -> RootCause:
    """The root cause, which must be recorded."""
    assert status.cause is not None
    return status.cause


def condition_of(status: Status) -> ConditionChanged:
    """The condition, which must be recorded."""
    assert status.condition is not None
    return status.condition


def checkpoint_of(status: Status) -> CheckpointChanged:
    """The newest checkpoint, which must be recorded."""
    assert status.checkpoint is not None
    return status.checkpoint
