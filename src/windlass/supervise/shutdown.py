"""Shutdown of an attempt: SIGTERM to its nodes, a grace period for their ranks, then SIGKILL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from windlass.runs.clock import Clock
from windlass.supervise.backend import Attempt, Intent, Node
from windlass.worker.protocol import FAILURE_GRACE_SECONDS

LAST_RESORT_SECONDS: Final = 5.0
"""Seconds after the grace period at which a node that has not ended is killed with all its processes."""
OVERRULING: Final = ("stop", "timeout", "upload")
"""Reasons that replace the reason of a shutdown in progress, because no attempt follows after them."""


class Shutdown:
    """Shutdown of one attempt: its reason, if it has begun, and its progress."""

    def __init__(self, attempt: Attempt, grace_seconds: float, clock: Clock) -> None:
        self._attempt = attempt
        self._grace_seconds = grace_seconds
        self._clock = clock
        self.reason: str | None = None
        """Why the attempt is ended: `stop`, `timeout`, `upload`, `preemption`, `hang`, `resize` or `failure`; None
        until a shutdown begins."""
        self._now_at: float | None = None
        """End of the ranks' grace period by the monotonic clock, if nodes do not enforce it."""
        self._kill_at: float | None = None
        self._is_hurried = False
        self._spared: set[Node] = set()
        """Nodes with ranks that still work on their own, for example to save a checkpoint."""
        self._spared_until = 0.0
        """Time until which the nodes in `_spared` are not killed, by the monotonic clock."""
        self._kept_until: dict[Node, float] = {}
        """Time until which nodes that left `_spared` are not killed, by the monotonic clock."""
        self._ended: set[Node] = set()
        """Nodes whose grace period was skipped or cut short."""

    def is_killing(self, node: Node) -> bool:
        """Whether the supervisor has killed this node, if the node ends now without reporting."""
        if self._kill_at is None or self._is_spared(node):
            return False
        return self._clock.monotonic() >= max(self._kill_at, self._kept_until.get(node, 0.0))

    def _is_spared(self, node: Node) -> bool:
        is_in_time = not self._is_hurried and self._clock.monotonic() < self._spared_until
        return is_in_time and node in self._spared

    def is_new_reason(self, reason: str) -> bool:
        """Whether this reason begins the shutdown or replaces the current reason."""
        return self.reason is None or (reason in OVERRULING and reason != self.reason)

    def begin(self, reason: str) -> None:
        """Stops every node once. Each node gives its ranks the grace period; hung ranks get none, because they cannot
        use it.
        """
        is_begun = self.reason is not None
        if self.is_new_reason(reason):
            self.reason = reason
        if is_begun:
            return
        grace = 0.0 if reason == "hang" else self._grace_seconds
        self._attempt.send(Intent.STOP_NOW if reason == "hang" else Intent.STOP)
        self._spared_until = self._clock.monotonic() + grace + LAST_RESORT_SECONDS
        if reason == "failure":
            # Nodes report ranks that are still saving before this time is over.
            grace = min(grace, FAILURE_GRACE_SECONDS + self._attempt.report_lag_seconds)
            self._now_at = self._clock.monotonic() + grace
        self._kill_at = self._clock.monotonic() + grace + LAST_RESORT_SECONDS

    def spare(self, node: Node, ranks: Sequence[int]) -> None:
        """Handles a node's report that ranks still work on their own. After a failure, the node keeps the grace period
        while any such rank runs.
        """
        if ranks:
            self._spared.add(node)
        else:
            self._spared.discard(node)
            self._kept_until[node] = self._clock.monotonic() + LAST_RESORT_SECONDS

    def hurry(self) -> None:
        """Skips the grace period at the user's request. Sends the signal in every iteration, because a signal may be
        lost.
        """
        self._is_hurried = True
        self._attempt.send(Intent.STOP_NOW)
        self._kill_at = min(self._kill_at or float("inf"), self._clock.monotonic() + LAST_RESORT_SECONDS)

    def turn(self) -> None:
        """Runs due actions. A node whose ranks have ended may copy results; only `stop --now` interrupts the copy."""
        nodes = self._attempt.live_nodes() if self._is_hurried else self._attempt.training_nodes()
        if self._now_at is not None and self._clock.monotonic() >= self._now_at:
            for node in nodes:
                if node not in self._ended and not self._is_spared(node):
                    self._ended.add(node)
                    node.send(Intent.STOP_NOW)
        if killed := [node for node in nodes if self.is_killing(node)]:
            self._attempt.kill(killed)

    def due_in(self, seconds: float) -> float:
        """Returns the seconds until the next action is due, at most `seconds`."""
        now = self._clock.monotonic()
        return seconds if self._now_at is None or now >= self._now_at else min(seconds, self._now_at - now)
