"""Shutdown of an attempt: SIGTERM to its nodes, a grace period for their ranks, then SIGKILL to what is left."""

from __future__ import annotations

from typing import Final

from windlass.supervise.backend import Attempt, Intent
from windlass.supervise.clock import Clock

FAILURE_GRACE_SECONDS: Final = 3.0
"""Grace of ranks whose peer has failed: they cannot train on, and the next attempt waits for them."""
LAST_RESORT_SECONDS: Final = 5.0
"""How long after the grace period a node that has not ended is killed with all its processes."""
OVERRULING: Final = ("stop", "timeout", "upload")
"""Reasons that replace one in progress: no attempt follows them."""


class Shutdown:
    """The shutdown of one attempt: its reason, if it has begun, and its progress."""

    def __init__(self, attempt: Attempt, grace_seconds: float, clock: Clock) -> None:
        self._attempt = attempt
        self._grace_seconds = grace_seconds
        self._clock = clock
        self.reason: str | None = None
        """`stop`, `timeout`, `upload`, `preemption`, `hang`, `resize` or `failure`; None before a shutdown begins."""
        self._now_at: float | None = None
        """When the grace period of its ranks ends, where the nodes do not enforce it."""
        self._kill_at: float | None = None
        self._is_hurried = False

    @property
    def is_killing(self) -> bool:
        """Whether nodes that end now without reporting were killed by us."""
        return self._kill_at is not None and self._clock.monotonic() >= self._kill_at

    def is_news(self, reason: str) -> bool:
        """Whether this begins it, or replaces the reason of one in progress."""
        return self.reason is None or (reason in OVERRULING and reason != self.reason)

    def begin(self, reason: str) -> None:
        """Stop every node, once; each gives its ranks the grace period, except hung ranks, which cannot use it."""
        is_begun = self.reason is not None
        if self.is_news(reason):
            self.reason = reason
        if is_begun:
            return
        grace = 0.0 if reason == "hang" else self._grace_seconds
        self._attempt.send(Intent.STOP_NOW if reason == "hang" else Intent.STOP)
        if reason == "failure":
            grace = min(grace, FAILURE_GRACE_SECONDS)
            ends_at = self._clock.monotonic() + grace
            self._now_at = ends_at if self._now_at is None else min(self._now_at, ends_at)
        self._kill_at = self._clock.monotonic() + grace + LAST_RESORT_SECONDS

    def end_grace(self) -> None:
        """End the grace period at the next iteration, also where the shutdown begins only then."""
        self._now_at = self._clock.monotonic()

    def hurry(self) -> None:
        """The user requested no grace period; repeated every iteration, since a signal may be lost."""
        self._is_hurried = True
        self._attempt.send(Intent.STOP_NOW)
        self._kill_at = min(self._kill_at or float("inf"), self._clock.monotonic() + LAST_RESORT_SECONDS)

    def turn(self) -> None:
        """Do what is due. A node that copies results has no rank to wait for: only `stop --now` cuts it short."""
        nodes = self._attempt.live_nodes() if self._is_hurried else self._attempt.training_nodes()
        if self._now_at is not None and self._clock.monotonic() >= self._now_at:
            self._now_at = None
            for node in nodes:
                node.send(Intent.STOP_NOW)
        if self.is_killing:
            self._attempt.kill(nodes)

    def due_in(self, seconds: float) -> float:
        """The seconds until something is due, at most `seconds`."""
        return seconds if self._now_at is None else max(0.0, min(seconds, self._now_at - self._clock.monotonic()))
