"""Finds out which nodes are there: those that a cut in the network took away are given up, and others let in again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from windlass.engines.keeping.ground import Attempt, Node
from windlass.engines.keeping.membership import Membership, cut_off
from windlass.engines.keeping.recording import Recording

MUSTER_SECONDS: Final = 0.5
"""How often it is looked whether nodes that are away can be reached."""


class RollCall:
    """Who can be reached, over all attempts of a run; the record then says who takes part."""

    def __init__(self, record: Recording, membership: Membership, unplugged: Callable[[], set[int]]) -> None:
        self._record = record
        self._membership = membership
        self._unplugged = unplugged
        self._unheard: dict[int, tuple[int, ...]] = {}
        """For each node of the attempt that has complained, the nodes that it no longer hears."""
        self.cut: set[int] = set()
        """Nodes that were given up since the others do not hear them."""
        self._mustered_at = 0.0

    def begin(self) -> None:
        """A new attempt: nobody has complained yet."""
        self._unheard.clear()
        self.cut.clear()

    def unreachable(self, attempt: Attempt, node: Node, silent: Sequence[int], *, is_ending: bool) -> bool:
        """A node does not hear others: whoever is on the lost side of that cut is given up, at once, unless all end.

        Gives whether any node was.
        """
        self._unheard[node.number] = tuple(silent)
        live = {one.number: one for one in attempt.live_nodes()}
        complaints = {number: silent for number, silent in self._unheard.items() if number in live}
        for number in () if is_ending else cut_off(live, complaints):
            self.cut.add(number)
            live[number].send(signal.SIGKILL)
            live[number].sweep()
        return bool(self.cut)

    def muster(self, *, between: bool) -> list[int]:
        """Let in again the nodes that were away for long enough and can be reached; gives these.

        `between` two attempts, those that cannot be reached are found too: after a cut they may be on either side.
        """
        ready = self._membership.may_come_back(time.time())
        if not (ready or self.cut) or time.monotonic() - self._mustered_at < MUSTER_SECONDS:
            return []
        self._mustered_at = time.monotonic()
        down = self._unplugged()
        for node in down.intersection(self._membership.members) if between else ():
            self._record.note("lost-node", {"node": node, "why": f"the link of node {node} is down"})
        back = [node for node in ready if node not in down]
        for node in back:
            self._record.note("node-back", {"node": node})
        return back
