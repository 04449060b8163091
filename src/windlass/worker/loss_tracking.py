"""Tracks the loss of one rank: its last finite value, and each step where it becomes NaN or infinite."""

from __future__ import annotations

from typing import Any, Final

from windlass.worker.trainlogs import Progress

NOT_FINITE: Final = ("nan", "inf", "-inf")
"""Strings that stand for NaN and infinities in the progress of a rank, because JSON has no such numbers."""
MAX_REPORTED: Final = 32
"""Maximum number of reports for a loss that becomes NaN or infinite repeatedly."""


class Losses:
    """Finds each step at which the loss of a rank changes from finite to NaN or infinity."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._finite: dict[str, Any] | None = None
        self._is_finite = True
        self._num_reported = 0
        self.changes: list[dict[str, Any]] = []
        """Changes of the loss to NaN or infinity: `loss` and `step` of the first such value, and `last`, the finite
        loss before it."""

    def is_change(self, progress: Progress) -> bool:
        """Whether the loss was finite before and is not finite in this progress."""
        return self._is_finite and progress.get("loss") in NOT_FINITE

    def take(self, progress: Progress) -> None:
        """Adds progress from one output line or from a post to the status server."""
        if isinstance(progress.get("step"), int):
            self._step = progress["step"]
        loss = progress.get("loss")
        if loss is None:
            return
        here = {"loss": loss} if self._step is None else {"loss": loss, "step": self._step}
        if loss not in NOT_FINITE:
            self._is_finite, self._finite = True, here
            return
        if self._is_finite and self._num_reported < MAX_REPORTED:
            self._num_reported += 1
            self.changes.append({**here, **({"last": self._finite} if self._finite else {})})
        self._is_finite = False
