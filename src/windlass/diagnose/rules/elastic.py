"""Rule on elastic runs: an attempt with another world size cannot load the checkpoint of an earlier one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from windlass.diagnose.flights import named
from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Verdict
from windlass.runs.events import AttemptStarted, CheckpointChanged, FirstStep, NodeLost, Progress, RunResumed, entries

ABOUT_RANKS: Final = re.compile(
    r"world.?size|data.?parallel|\bdp\b|\brank\b|\branks\b|rank[_-]?\d|shard|replicas|partition|\bGPUs\b|\bprocesses\b",
    re.IGNORECASE,
)
"""Words that suggest that an error depends on the number of ranks."""
RESHARD: Final = "save checkpoints for any number of ranks: torch.distributed.checkpoint, windlass.train.Checkpoint"


def world_size_changed(case: Observations) -> Iterator[Verdict]:
    """Explains that the first attempt with another number of ranks failed before its first step, on files of earlier
    attempts.
    """
    error, attempts, trained = case.raised, list[AttemptStarted](), list[AttemptStarted]()
    for event in case.events:
        match event.entry:
            case AttemptStarted() as attempt:
                attempts.append(attempt)
            case FirstStep() | CheckpointChanged(action="saved") | Progress(step=int()):
                trained += attempts[-1:]
    if error is None or not trained or any(attempt.world_size == attempts[-1].world_size for attempt in trained):
        return
    before, newest = trained[-1], attempts[-1]
    now = newest.world_size
    text = f"{error.line}\n{error.message}"
    has_both = all(re.search(rf"(?<![\d.]){number}(?![\d.])", text) for number in (now, before.world_size))
    is_sure = has_both or ABOUT_RANKS.search(text) is not None
    resumed = next((one.nodes for one in reversed(list(entries(case.events, RunResumed))) if one.nodes), None)
    if resumed is not None:
        why = f"it was resumed with nodes: {resumed}"
        fix = f"windlass resume {case.status.id} --nodes {len(before.nodes)}"
    else:
        lost = sorted({one.node for one in entries(case.events, NodeLost)})
        why = f"elastic nodes: {named(lost).replace('rank', 'node')} lost" if lost else "elastic nodes"
        fix = f"nodes: {len(before.nodes)} keeps the number: the job then waits for a lost node"
    end = f"{case.who} cannot continue" if is_sure else f"{case.who} failed before its first step"
    yield case.of_first(
        "world-size-changed",
        f"the world size changed from {before.world_size} to {now} ({why}), and {end}: {error.line[:200]}",
        (
            f"attempt {before.number} trained with {_ranks(before)}, attempt {newest.number} began with "
            f"{_ranks(newest)}",
            *([case.where] if case.where else []),
        ),
        f"{fix}; or {RESHARD}",
        94 if is_sure else 59,
    )


def _ranks(attempt: AttemptStarted) -> str:
    return f"{attempt.world_size} rank{'s' * (attempt.world_size != 1)}"
