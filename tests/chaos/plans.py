"""Turns a seed into what a chaos run goes through: its shape, and which faults strike it when."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass

EVERY_STEPS = 20
"""Steps between checkpoints."""
SHAPES = ((1, 1), (1, 2), (1, 2), (2, 1), (2, 1), (2, 2))
"""Nodes × ranks; two ranks are the case in which most can go wrong for the least time."""

KINDS = (
    "rank", "node", "warm", "supervisor", "power cut", "sigterm", "node sigterm", "stop", "disk full", "truncate",
    "flip", "manifest", "read error", "store full", "supervisor on a full store", "node while another starts",
)  # fmt: skip
STORE_KINDS = ("endpoint lies", "object forbidden", "token expired", "byte flipped")
"""What happens to runs whose data, checkpoints and outputs are in an S3 store."""
STORE_SHARED = ("rank", "node", "supervisor", "power cut", "stop")
"""Faults of other runs that meet those too."""
FIRST_STORE_SEED = 200
NOTICES = frozenset({"sigterm", "node sigterm", "stop"})
"""Faults that are announced, so that nothing is lost."""
DAMAGES = frozenset({"truncate", "flip", "manifest"})
"""What is done to the newest checkpoint before all ranks are killed."""
FULL_STORES = frozenset({"store full", "supervisor on a full store"})
"""The disk that holds the record is full for some steps."""
READ_ERRORS = (errno.ESTALE, errno.EIO, errno.EACCES)
READ_ERROR_SECONDS = 15.0
"""How long reads fail at most; a restore repeats them for four times as long."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault and its moment, counted from the one before it."""

    kind: str
    after_steps: int | None
    """Strikes once so many steps have been added; None for a moment while the ranks start."""
    after_seconds: float
    """Where `after_steps` is None: so long after the strike before."""
    which: float
    """Picks the victim or the place, as a share of all there are."""
    detail: float
    """A second choice, as a share too."""

    def __str__(self) -> str:
        when = f"{self.after_seconds:.2f} s" if self.after_steps is None else f"{self.after_steps} steps"
        return f"{self.kind} after {when}"


@dataclass(frozen=True, slots=True)
class Case:
    """All that a seed decides."""

    seed: int
    nodes: int
    procs_per_node: int
    strikes: tuple[Strike, ...]

    @property
    def is_in_store(self) -> bool:
        """Whether data, checkpoints and outputs are in an S3 store."""
        return self.seed >= FIRST_STORE_SEED

    @property
    def world_size(self) -> int:
        return self.nodes * self.procs_per_node

    @property
    def fills_a_disk(self) -> bool:
        return any(strike.kind == "disk full" for strike in self.strikes)

    @property
    def fills_the_store(self) -> bool:
        return any(strike.kind in FULL_STORES for strike in self.strikes)

    def __str__(self) -> str:
        return f"{self.nodes}×{self.procs_per_node}: {', '.join(map(str, self.strikes))}"


def case_of(seed: int) -> Case:
    """The case of a seed. Seeds that follow each other begin with another kind each, so that 16 have seen all."""
    if seed >= FIRST_STORE_SEED:
        return _case_in_store(seed)
    rng = random.Random(seed)
    nodes, procs_per_node = rng.choice(SHAPES)
    kinds = [KINDS[seed % len(KINDS)], *rng.choices(KINDS, k=rng.choice([0, 1, 1, 2]))]
    if "node while another starts" in kinds:
        nodes = 2
    strikes = []
    for number, kind in enumerate(kinds):
        early = number > 0 and kind not in DAMAGES | FULL_STORES and rng.random() < 0.3
        strikes.append(
            Strike(kind, None if early else rng.randint(1, 90), rng.uniform(0, 0.5), rng.random(), rng.random())
        )
    return Case(seed, nodes, procs_per_node, tuple(strikes))


def _case_in_store(seed: int) -> Case:
    """A case of a run in a store; its first strike may fall while the data is staged."""
    rng = random.Random(seed)
    nodes, procs_per_node = rng.choice(SHAPES)
    more = rng.choices((*STORE_KINDS, *STORE_SHARED), k=rng.choice([0, 1, 1, 2]))
    kinds = [STORE_KINDS[seed % len(STORE_KINDS)], *more]
    moments = [None if rng.random() < 0.25 else rng.randint(1, 90) for _ in kinds]
    strikes = [
        Strike(kind, moment, rng.uniform(0, 0.5), rng.random(), rng.random())
        for kind, moment in zip(kinds, moments, strict=True)
    ]
    return Case(seed, nodes, procs_per_node, tuple(strikes))
