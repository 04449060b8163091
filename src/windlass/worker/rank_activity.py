"""Distinguishes ranks that work by themselves, as on a save, from ranks that wait for others.

After a failure the first have their grace period; the others would wait for a rank that does not come. A rank answers
by itself, from the thread that reads its flight recorder. One that never made a process group has no peers that torch
knows; those of MPI, JAX and TensorFlow meet by other means, so of their ranks nothing is known.
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
"""The mark of a rank that has made a process group; see `rank.py`."""
OTHER_GROUPS = ("JAX_COORDINATOR_ADDRESS", "TF_CONFIG")


class Activity(NamedTuple):
    """What live ranks do; a rank in neither list has not answered, or cannot be asked."""

    working: tuple[Rank, ...]
    waiting: tuple[Rank, ...]


def activity_of(ranks: Sequence[Rank], spec: NodeSpec) -> Activity:
    """What these ranks do. Takes a second where one does not answer."""
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
