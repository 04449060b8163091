"""Follows the loss of one rank: the last finite one, and where it became NaN or infinite."""

from __future__ import annotations

from typing import Any, Final

from windlass.worker.trainlogs import Progress

NOT_FINITE: Final = ("nan", "inf", "-inf")
"""As progress has them, which is JSON."""
MAX_REPORTED: Final = 32
"""A loss that turns infinite again and again is reported no more often."""


class Losses:
    """Takes what a rank reports, in order; gives each change from a finite loss to one that is not."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._finite: dict[str, Any] | None = None
        self._is_finite = True
        self._num_reported = 0
        self.changes: list[dict[str, Any]] = []
        """`loss` and `step` where it was no longer finite, and `last`, the finite loss before with its step."""

    def is_change(self, progress: Progress) -> bool:
        """Whether the loss is no longer finite here."""
        return self._is_finite and progress.get("loss") in NOT_FINITE

    def take(self, progress: Progress) -> None:
        """Take the progress of one line, or what was reported in another way."""
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
