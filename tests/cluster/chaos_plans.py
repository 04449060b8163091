"""Turns a seed into what a run supervised in its cluster goes through: its shape, and which faults strike it when."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos import plans
from tests.chaos.plans import Strike

SHAPES = ((1, 1), (1, 2), (2, 1), (2, 1))
"""Nodes × ranks."""
VIA = ("job", "job", "jobset")
QUIET = (
    "supervisor deleted",
    "connections cut",
    "supervisor killed",
    "connections stalled",
    "supervisor suspended",
    "user's login",
    "user's connections",
    "api down",
    "api frozen",
    "logins refused",
    "network cut",
    "node of the supervisor",
)
"""What no rank may notice. Of the last one, where no pod of the attempt is on that node."""
HARMFUL = ("rank", "pod", "pod evicted")
KINDS = (*QUIET, *HARMFUL)
LASTING = frozenset(QUIET) - {"supervisor deleted", "supervisor killed", "node of the supervisor"}
"""These last for some seconds, and something else may happen meanwhile."""
SHARED = frozenset({"api down", "api frozen", "logins refused", "network cut", "node of the supervisor"})
"""These strike every run of the bed."""
MEANWHILE = ("", "", "supervisor", "rank")
"""A process of which kind is killed in the middle of it, if any."""


@dataclass(frozen=True, slots=True)
class Case(plans.Case):
    """All that a seed decides."""

    via: str = "job"
    is_elastic: bool = False

    def __str__(self) -> str:
        return f"{'elastic ' * self.is_elastic}{self.via} {plans.Case.__str__(self)}"


def case_of(seed: int) -> Case:
    """The case of a seed. Seeds that follow each other begin with another kind each, so that 15 have seen all."""
    rng = random.Random(seed)
    nodes, procs_per_node = rng.choice(SHAPES)
    kinds = [KINDS[seed % len(KINDS)], *rng.choices(KINDS, k=rng.choice([1, 2, 2, 3]))]
    if "node of the supervisor" in kinds:
        nodes, procs_per_node = 1, 2  # of two, each would be on a node that the supervisor can be on
        slow = kinds.index("node of the supervisor")
        kinds = [kind for at, kind in enumerate(kinds) if kind != "node of the supervisor" or at == slow]
    strikes = []
    for kind in kinds:
        early = rng.random() < 0.3
        steps = None if early else rng.randint(1, 120)
        strikes.append(Strike(kind, steps, rng.uniform(0, 8), rng.random(), rng.random()))
    is_elastic = nodes == 2 and rng.random() < 0.4
    return Case(seed, nodes, procs_per_node, tuple(strikes), rng.choice(VIA), is_elastic)


def seconds_of(strike: Strike) -> float:
    """How long a strike lasts."""
    seconds = 1 + 9 * strike.which
    match strike.kind:
        case "network cut":
            return seconds / 3  # ranks and Kubernetes itself bear little more
        case "connections stalled":
            return seconds * 4  # at most as long as a Lease
        case _:
            return seconds
