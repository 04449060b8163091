"""Phases of a run, and the exit codes for its ends."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class Phase(enum.StrEnum):
    """State of a run. Every second of a run belongs to exactly one phase; the last four phases end it.

    Two phases are not states of a run itself: `idle` is time without any process (the run had ended and was resumed, or
    its machine was down), and `preempted` is the end of an attempt whose node was taken away.
    """

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    PULLING = "pulling"
    STAGING = "staging"
    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    UPLOADING = "uploading"
    IDLE = "idle"
    PREEMPTED = "preempted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended; an ended run may be resumed."""
        return self in TERMINAL


TERMINAL: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST})

EXIT_CODES: Final[Mapping[Phase, int]] = {Phase.SUCCEEDED: 0, Phase.FAILED: 100, Phase.STOPPED: 103, Phase.LOST: 100}
"""Exit code, by phase, of a command that waits for a run. `exit_code` of a status is the exit code of the script."""
