"""Distinguishes ranks that work on their own, for example on a save, from ranks that wait for other ranks.

After a failure, working ranks get their grace period; waiting ranks would wait in vain for the failed rank. A rank
reports its activity from the thread that reads its flight recorder. A rank that never created a process group has no
peers known to torch. Ranks of MPI, JAX and TensorFlow connect by other means, so their activity is unknown.
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
"""Suffix of the mark of a rank that has created a process group; see `rank.py`."""
OTHER_GROUPS = ("JAX_COORDINATOR_ADDRESS", "TF_CONFIG")


class Activity(NamedTuple):
    """Activity of live ranks; a rank in neither list has not responded, or cannot be asked."""

    working: tuple[Rank, ...]
    waiting: tuple[Rank, ...]


def activity_of(ranks: Sequence[Rank], spec: NodeSpec) -> Activity:
    """Asks ranks what they do. Takes a second if a rank does not respond."""
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
