"""How an attempt is ended: SIGTERM to its nodes, a grace period for their ranks, then whatever is left is killed."""

from __future__ import annotations

import signal
import time
from typing import Final

from windlass.engines.keeping.ground import Attempt

FAILURE_GRACE_SECONDS: Final = 3.0
"""What is left to ranks whose peer has failed: they cannot train on, and the next attempt waits for them."""
LAST_RESORT_SECONDS: Final = 5.0
"""How long after the grace period a node that does not end is killed with all its processes."""
OVERRULING: Final = ("stop", "timeout")
"""Reasons that count even where the attempt is being ended for another: nothing is to follow it."""


class Ending:
    """Why one attempt is being ended, if it is, and how far that has come."""

    def __init__(self, attempt: Attempt, grace_seconds: float) -> None:
        self._attempt = attempt
        self._grace_seconds = grace_seconds
        self.reason: str | None = None
        """`stop`, `timeout`, `preemption`, `hang`, `resize` or `failure`; None while it goes on."""
        self._now_at: float | None = None
        """When the grace period of its ranks is over, where the nodes do not know of it."""
        self._kill_at: float | None = None

    @property
    def is_killing(self) -> bool:
        """Whether nodes that die now without a word were killed by us."""
        return self._kill_at is not None and time.monotonic() >= self._kill_at

    def begin(self, reason: str) -> None:
        """SIGTERM to every node, once; each gives its ranks the grace period, but hung ones none: what for?"""
        if self.reason is not None:
            self.reason = reason if reason in OVERRULING else self.reason
            return
        self.reason = reason
        grace = self._grace_seconds
        if reason == "hang":
            grace = 0.0
            self._attempt.send(signal.SIGUSR1)
        else:
            self._attempt.send(signal.SIGTERM)
        if reason == "failure":
            grace = min(grace, FAILURE_GRACE_SECONDS)
            self._now_at = time.monotonic() + grace
        self._kill_at = time.monotonic() + grace + LAST_RESORT_SECONDS

    def no_more_grace(self) -> None:
        """The ranks are not to be waited for any longer, from the next turn on."""
        self._now_at = time.monotonic()

    def hurry(self) -> None:
        """A person wants no grace period, and says so again at every turn."""
        self._attempt.send(signal.SIGUSR1)
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + LAST_RESORT_SECONDS)

    def turn(self) -> None:
        """Do what is due."""
        if self._now_at is not None and time.monotonic() >= self._now_at:
            self._now_at = None
            self._attempt.send(signal.SIGUSR1)
        if self.is_killing:
            self._attempt.kill()

    def due_in(self, seconds: float) -> float:
        """The seconds until something is due, at most `seconds`."""
        return seconds if self._now_at is None else max(0.0, min(seconds, self._now_at - time.monotonic()))
