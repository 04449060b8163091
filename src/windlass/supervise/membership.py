"""Membership of nodes in an elastic run: which nodes take part, which are lost, and which may rejoin.

Node numbers are constant for the whole run; `plan/compose.py` numbers the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from windlass.runs.events import AttemptStarted, Entry, NodeBack, NodeLost, RunResumed


@dataclass(slots=True)
class Membership:
    """Nodes of one run that take part, and lost nodes."""

    num_nodes: int
    min_nodes: int
    return_seconds: float
    """Minimum time for which a lost node is excluded, so that a node that fails repeatedly does not stop the others
    each time."""
    away: dict[int, float] = field(default_factory=dict)
    """When each lost node was lost, in Unix seconds."""
    _lost: set[int] = field(default_factory=set)
    """Nodes that were ever lost."""

    @property
    def is_elastic(self) -> bool:
        """Whether the run may continue with fewer nodes."""
        return self.min_nodes < self.num_nodes

    @property
    def members(self) -> tuple[int, ...]:
        """Nodes that take part in the run."""
        return tuple(node for node in range(self.num_nodes) if node not in self.away)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough nodes to start."""
        return len(self.members) >= self.min_nodes

    def take(self, entry: Entry, now: float) -> None:
        """Updates the membership with an event of the record."""
        match entry:
            case NodeLost(node=node):
                self._lost.add(node)
                self.away.setdefault(node, now)
            case NodeBack(node=node):
                self.away.pop(node, None)
            case AttemptStarted(members=members):
                missing = set(range(self.num_nodes)) - set(members or range(self.num_nodes))
                self.away = {node: self.away.get(node, now) for node in sorted(missing)}
            case RunResumed(nodes=int()):  # nodes added by a new plan were never lost
                self.away = {node: at for node, at in self.away.items() if node in self._lost and node < self.num_nodes}

    def may_come_back(self, now: float) -> list[int]:
        """Returns the nodes that were lost for long enough to rejoin; all nodes if all were lost, because then this
        machine was down.
        """
        wait = self.return_seconds if self.is_elastic and self.members else 0.0
        return sorted(node for node, since in self.away.items() if now - since >= wait)


def cut_off(members: Iterable[int], silent: Mapping[int, Iterable[int]]) -> set[int]:
    """Returns the nodes on the minority side of a network partition: all except the largest group of nodes that reach
    each other.

    `silent` maps each reporting node to the nodes whose heartbeat it does not receive. Among groups of equal size, the
    group with the lowest node remains, so that only one group continues.
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
