"""How often the ranks of an elastic run have trained each sample, by what they noted of their steps."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def notes_in(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The notes in these files; a line whose writer was killed may be cut off."""
    lines = [line for path in sorted(paths) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def counted(notes: Iterable[dict[str, Any]]) -> dict[int, collections.Counter[int]]:
    """For each epoch, by the steps that were not trained again in a later attempt.

    Where fewer samples are left than ranks, and an attempt begins with them, ranks repeat one: it counts once.
    """
    of_ranks: dict[tuple[int, int, int], list[list[int]]] = collections.defaultdict(list)
    for note in notes:
        of_ranks[note["attempt"], note["step"], note["epoch"]].append(note["samples"])
    first: dict[int, int] = {}
    for attempt, step, _ in of_ranks:
        first[attempt] = min(step, first.get(attempt, step))
    epochs: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for (attempt, step, epoch), batches in of_ranks.items():
        if any(later > attempt and begun <= step for later, begun in first.items()):
            continue
        samples = [sample for batch in batches for sample in batch]
        may_repeat = step == first[attempt] and len(set(samples)) < len(batches)
        epochs[epoch].update(set(samples) if may_repeat else samples)
    return epochs
