"""Distinguishes ranks that work on their own, for example on a save, from ranks that wait for other ranks.

After a failure, working ranks get their whole grace period; waiting ranks do not, because they wait in vain for the
failed rank. In each rank, the thread that reads the flight recorder reports the activity. A rank that never created a
torch process group waits for no other rank. Ranks of MPI, JAX and TensorFlow connect without torch, so their activity
is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from windlass.worker.flight_recorder import STATE, WORK
from windlass.worker.protocol import NodeSpec
from windlass.worker.stack_dump import ask_flight, take_flights

if TYPE_CHECKING:
    from windlass.worker.ranks import Rank

MET = ".met"
"""Suffix of a file that shows that a rank has created a process group; written by `rank.py`."""
OTHER_GROUPS = ("JAX_COORDINATOR_ADDRESS", "TF_CONFIG")


class Activity(NamedTuple):
    """Ranks that work and ranks that wait for others; a rank in neither list has not responded, or cannot respond."""

    working: tuple[Rank, ...]
    waiting: tuple[Rank, ...]


def activity_of(ranks: Sequence[Rank], spec: NodeSpec) -> Activity:
    """Requests each rank's activity. Takes a second if a rank does not respond."""
    asked = [rank for rank in ranks if ask_flight(rank.base, WORK, STATE)]
    answers = take_flights([rank.base for rank in asked], STATE)
    variables = {*spec.env, *(name for one in spec.ranks for name in one.env)}
    is_lone = spec.launch is None and variables.isdisjoint(OTHER_GROUPS)
    working: list[Rank] = []
    waiting: list[Rank] = []
    for rank in ranks:
        if (answer := answers.get(rank.base)) is not None:
            (waiting if answer["waits"] else working).append(rank)
        elif is_lone and rank not in asked and not os.path.exists(rank.base + MET):
            working.append(rank)
    return Activity(tuple(working), tuple(waiting))
