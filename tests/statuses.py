"""What a test expects a status to have: its root cause, its condition, its checkpoint."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from windlass.runs.events import CheckpointChanged, ConditionChanged, RootCause
from windlass.runs.record import Status

PARTS = ("times", "supervision", "files", "about")


def cause_of(status: Status) -> RootCause:
    """The root cause, which must be recorded."""
    assert status.cause is not None
    return status.cause


def condition_of(status: Status) -> ConditionChanged:
    """The condition, which must be recorded."""
    assert status.supervision.condition is not None
    return status.supervision.condition


def checkpoint_of(status: Status) -> CheckpointChanged:
    """The newest checkpoint, which must be recorded."""
    assert status.checkpoint is not None
    return status.checkpoint


def changed(status: Status, **changes: Any) -> Status:
    """The status with other fields, of its own or of its parts."""
    for part in PARTS:
        value = getattr(status, part)
        its = {field.name: changes.pop(field.name) for field in fields(value) if field.name in changes}
        status = replace(status, **{part: replace(value, **its)})
    return replace(status, **changes)
