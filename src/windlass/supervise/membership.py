"""Which nodes of an elastic run take part: those that are lost, and those that may rejoin. Node numbers are constant
for the whole run; ranks are numbered by `plan/compose.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from windlass.runs.events import AttemptStarted, Entry, NodeBack, NodeLost, RunResumed


@dataclass(slots=True)
class Membership:
    """The nodes of one run that take part, and those that are lost."""

    num_nodes: int
    min_nodes: int
    return_seconds: float
    """How long a lost node is kept out at least: one that fails repeatedly must not stop the others each time."""
    away: dict[int, float] = field(default_factory=dict)
    """When each lost node was lost, in unix seconds."""
    _lost: set[int] = field(default_factory=set)
    """Nodes that were ever lost."""

    @property
    def is_elastic(self) -> bool:
        """Whether the run may continue with fewer nodes than it has."""
        return self.min_nodes < self.num_nodes

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes that take part."""
        return tuple(node for node in range(self.num_nodes) if node not in self.away)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough nodes to start."""
        return len(self.members) >= self.min_nodes

    def take(self, entry: Entry, now: float) -> None:
        """What one more event of the record carries."""
        match entry:
            case NodeLost(node=node):
                self._lost.add(node)
                self.away.setdefault(node, now)
            case NodeBack(node=node):
                self.away.pop(node, None)
            case AttemptStarted(members=members):
                missing = set(range(self.num_nodes)) - set(members or range(self.num_nodes))
                self.away = {node: self.away.get(node, now) for node in sorted(missing)}
            case RunResumed(nodes=int()):  # by a new plan, which may have more nodes: those it adds were not lost
                self.away = {node: at for node, at in self.away.items() if node in self._lost and node < self.num_nodes}

    def may_come_back(self, now: float) -> list[int]:
        """Nodes that were lost for long enough to rejoin. If all are lost, the machine was down: none has to wait."""
        wait = self.return_seconds if self.is_elastic and self.members else 0.0
        return sorted(node for node, since in self.away.items() if now - since >= wait)


def cut_off(members: Iterable[int], silent: Mapping[int, Iterable[int]]) -> set[int]:
    """The nodes on the lost side of a cut: all that do not belong to the largest group of nodes that reach each other.

    `silent` has, for each node that has reported it, the nodes whose heartbeat it does not receive. Of groups of equal
    size the one with the lowest node is kept, so that there is never more than one.
    """
    left = set(members)
    deaf = {frozenset((a, b)) for a, others in silent.items() for b in others}
    groups: list[set[int]] = []
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = {b for b in left - group if any(frozenset((a, b)) not in deaf for a in edge)}
        groups.append(group)
        left -= group
    stays = max(groups, key=len, default=set())
    return set().union(*groups) - stays
