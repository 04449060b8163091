"""Which nodes of an elastic run take part: who is lost, who may come back, and what each is sent when they are fewer.

Nodes keep their numbers for as long as the run lives ("node 2" is always the same one); the ranks of an attempt are
numbered anew over the nodes that take part, as torch's elastic agents do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.plan.placement import group_environment, place, rank_environment
from windlass.plan.plan import Plan
from windlass.runs.record import Event

Request = Mapping[str, Any]
HEARTBEAT: Final = {"port": 29399, "interval_seconds": 0.5, "patience_seconds": 3.0, "start_patience_seconds": 30.0}
"""Below the ports that a kernel gives out by itself, and those at which ranks meet."""

OF_THE_MACHINE: Final = ("notices",)
"""What one node does for the machine that all share: the first of those that take part."""


@dataclass(slots=True)
class Membership:
    """The nodes of one run that are there, and those that are away."""

    num_nodes: int
    min_nodes: int
    return_seconds: float
    """How long a lost node stays away at least: one that dies again and again must not stop the others each time."""
    away: dict[int, float] = field(default_factory=dict)
    """When each node that is away was lost, in unix seconds."""

    @property
    def is_elastic(self) -> bool:
        """Whether the run may go on with fewer nodes than it has."""
        return self.min_nodes < self.num_nodes

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes that are there."""
        return tuple(node for node in range(self.num_nodes) if node not in self.away)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough nodes to start."""
        return len(self.members) >= self.min_nodes

    def recall(self, events: Iterable[Event]) -> None:
        """Know again who is away, from the record of the run."""
        for event in events:
            self.take(event.kind, event.data, event.time)

    def take(self, kind: str, data: Mapping[str, Any], now: float) -> None:
        """One more event of the record."""
        if kind == "lost-node":
            self.away.setdefault(data["node"], now)
        elif kind == "node-back":
            self.away.pop(data["node"], None)
        elif kind == "attempt":
            missing = set(range(self.num_nodes)) - set(data.get("members") or range(self.num_nodes))
            self.away = {node: self.away.get(node, now) for node in sorted(missing)}

    def may_come_back(self, now: float) -> list[int]:
        """Nodes that were away for long enough. Where all are lost, it was the machine: none has to wait."""
        wait = self.return_seconds if self.is_elastic and self.members else 0.0
        return sorted(node for node, since in self.away.items() if now - since >= wait)


def cut_off(members: Iterable[int], silent: Mapping[int, Iterable[int]]) -> set[int]:
    """The nodes on the lost side of a cut: all that do not belong to the largest group of nodes that reach each other.

    `silent` has, for each node that has said something, the nodes that it no longer hears. Of groups of one size the
    one with the lowest node stays, so that there is never more than one.
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


def compose(requests: Sequence[Request], members: Sequence[int], num_nodes: int, procs_per_node: int) -> list[Request]:
    """What the nodes that take part are sent: the plan's requests, with the ranks numbered over these nodes alone.

    `num_nodes` is the number that the requests were planned for. What a job sets of itself stays as it is.
    """
    if len(requests) != num_nodes:  # one launcher starts the ranks of all nodes
        return list(requests)
    planned = group_environment(num_nodes, procs_per_node)
    now = group_environment(len(members), procs_per_node)
    composed: list[Request] = []
    for number, places in zip(members, place(len(members), procs_per_node), strict=True):
        request = requests[number]
        env = {name: now[name] if planned.get(name) == value else value for name, value in request["env"].items()}
        ranks = [
            {**rank, "rank": own.rank, "local_rank": own.local_rank, "env": {**rank["env"], **rank_environment(own)}}
            for rank, own in zip(request["ranks"], places, strict=True)
        ]
        composed.append({**request, "env": env, "ranks": ranks})
    of_the_machine = {name: requests[0][name] for name in OF_THE_MACHINE if name in requests[0]}
    return [{**composed[0], **of_the_machine}, *composed[1:]]


def composed(plan: Plan, members: Sequence[int]) -> list[Request]:
    """The requests of the nodes that take part."""
    return compose(plan.requests("node"), members, plan.num_nodes, plan.procs_per_node)


def heartbeat(network: Request, members: Sequence[int], node: int, attempt_id: str) -> dict[str, Any]:
    """What a node's worker needs to tell the other members that it can be reached; see `worker/heartbeat.py`."""
    addresses = {other: network["nodes"][other]["address"] for other in members}
    peers = {str(other): address for other, address in addresses.items() if other != node}
    return {"id": attempt_id, "node": node, "address": addresses[node], "peers": peers, **HEARTBEAT}
