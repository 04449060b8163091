"""Turns a seed into a chaos case for a run supervised in its cluster: its shape, and its faults with their times."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.chaos import plans
from tests.chaos.plans import Strike

SHAPES = ((1, 1), (1, 2), (2, 1), (2, 1))
"""Numbers of nodes and of ranks per node."""
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
"""Faults that no rank may notice; the last one only if the node has no pod of the attempt."""
HARMFUL = ("rank", "pod", "pod evicted")
KINDS = (*QUIET, *HARMFUL)
LASTING = frozenset(QUIET) - {"supervisor deleted", "supervisor killed", "node of the supervisor"}
"""Faults that last for some seconds, during which another fault may be injected."""
SHARED = frozenset({"api down", "api frozen", "logins refused", "network cut", "node of the supervisor"})
"""Faults that affect every run of the test cluster."""
MEANWHILE = ("", "", "supervisor", "rank")
"""Kind of process that is killed during a lasting fault, if any."""


@dataclass(frozen=True, slots=True)
class Case(plans.Case):
    """All decisions of a seed."""

    via: str = "job"
    is_elastic: bool = False

    def __str__(self) -> str:
        return f"{'elastic ' * self.is_elastic}{self.via} {plans.Case.__str__(self)}"


def case_of(seed: int) -> Case:
    """Returns the case of a seed. Consecutive seeds start with different faults, so that 15 seeds cover all."""
    rng = random.Random(seed)
    nodes, procs_per_node = rng.choice(SHAPES)
    kinds = [KINDS[seed % len(KINDS)], *rng.choices(KINDS, k=rng.choice([1, 2, 2, 3]))]
    if "node of the supervisor" in kinds:
        nodes, procs_per_node = 1, 2  # two nodes would each run on a node that the supervisor may use
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
    """Returns the duration of a fault in seconds."""
    seconds = 1 + 9 * strike.which
    match strike.kind:
        case "network cut":
            return seconds / 3  # ranks and Kubernetes itself tolerate little more
        case "connections stalled":
            return seconds * 4  # at most the duration of a Lease
        case _:
            return seconds
