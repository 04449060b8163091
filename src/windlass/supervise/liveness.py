"""Liveness of nodes: kills nodes that the others cannot reach, and lets nodes rejoin that are reachable again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from windlass.runs.clock import Clock
from windlass.runs.events import NodeBack, NodeLost
from windlass.supervise.backend import Attempt, Intent, Node
from windlass.supervise.membership import Membership, cut_off
from windlass.supervise.recorder import Recorder

REJOIN_SECONDS: Final = 0.5
"""Interval of checks whether lost nodes can be reached again."""


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
        """Nodes whose heartbeat is not received, by the node of the attempt that reported it."""
        self.cut: set[int] = set()
        """Nodes that were declared lost because the others do not receive their heartbeat."""
        self._looked_at: float | None = None

    def begin(self) -> None:
        """Starts a new attempt, in which no node has reported anything yet."""
        self._silent.clear()
        self.cut.clear()

    def take_unreachable(self, attempt: Attempt, node: Node, silent: Sequence[int], *, is_ending: bool) -> None:
        """Handles a node that receives no heartbeat of others: kills the smaller side of the partition, unless all
        nodes are being ended.
        """
        self._silent[node.number] = tuple(silent)
        live = {one.number: one for one in attempt.training_nodes()}  # a node that copies results sends no heartbeat
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
