"""Liveness of nodes: kills nodes that other nodes cannot reach, and lets nodes rejoin once they are reachable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from windlass.runs.clock import Clock
from windlass.runs.events import NodeBack, NodeLost
from windlass.supervise.backend import Attempt, Intent, Node
from windlass.supervise.membership import Membership, cut_off
from windlass.supervise.recorder import Recorder

REJOIN_SECONDS: Final = 0.5
"""Seconds between checks whether lost nodes can be reached again."""


class Liveness:
    """Reachability of nodes over all attempts of a run; records which nodes take part."""

    def __init__(
        self, record: Recorder, membership: Membership, unreachable: Callable[[], set[int]], clock: Clock
    ) -> None:
        self._record = record
        self._membership = membership
        self._unreachable = unreachable
        self._clock = clock
        self._silent: dict[int, tuple[int, ...]] = {}
        """Nodes without a received heartbeat, by the number of the node that reports this."""
        self.cut: set[int] = set()
        """Nodes that were declared lost because other nodes received no heartbeat from them."""
        self._looked_at: float | None = None

    def begin(self) -> None:
        """Starts a new attempt, without reports of its nodes."""
        self._silent.clear()
        self.cut.clear()

    def take_unreachable(self, attempt: Attempt, node: Node, silent: Sequence[int], *, is_ending: bool) -> None:
        """Handles a node's report of nodes without a heartbeat. Kills the smaller side of the partition, unless the
        attempt is ending.
        """
        self._silent[node.number] = tuple(silent)
        live = {
            one.number: one for one in attempt.training_nodes()
        }  # nodes that copy results are left out: they send no heartbeat
        reports = {number: silent for number, silent in self._silent.items() if number in live}
        for number in () if is_ending else cut_off(live, reports):
            self.cut.add(number)
            live[number].send(Intent.KILL)
            live[number].sweep()

    def rejoin(self, *, between: bool) -> list[int]:
        """Lets lost nodes rejoin that were away for long enough and are reachable. Returns these nodes.

        `between` two attempts, unreachable nodes are detected too: after a network partition they may be on either
        side.
        """
        ready = self._membership.may_come_back(self._clock.time())
        now = self._clock.monotonic()
        if not (ready or self.cut) or (self._looked_at is not None and now - self._looked_at < REJOIN_SECONDS):
            return []
        self._looked_at = now
        down = self._unreachable()
        for node in down.intersection(self._membership.members) if between else ():
            self._record.note(NodeLost(node, f"the link of node {node} is down"))
        back = [node for node in ready if node not in down]
        for node in back:
            self._record.note(NodeBack(node))
        return back
