"""Checkpoints that the newest attempt found damaged when it restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Phase

SCORE = 20
"""Below every cause of a failure: the attempt goes on."""


def damaged(case: Case) -> Iterator[Verdict]:
    """Work was lost because checkpoints are damaged, though the run goes on."""
    found = _of_newest_attempt(case)
    refused = [data for data in found if data.get("action") == "refused"]
    if not refused or case.status.phase is Phase.SUCCEEDED:
        return
    restored = next((data for data in found if data.get("action") == "restored"), None)
    if restored is not None:
        went_on = f"training went on from step {restored.get('step')}"
    elif any(data.get("action") == "none-verified" for data in found):
        went_on = "no checkpoint is verified, and training began at step 0"
    else:
        return  # the restore goes on, or ended with an error that says more
    many = (
        f"{len(refused)} checkpoints were"
        if len(refused) > 1
        else f"the checkpoint of step {refused[0].get('step')} was"
    )
    yield Verdict(
        "checkpoint-damaged",
        f"{many} not verified; {went_on}",
        evidence=tuple(f"{data.get('name')}: {data.get('reason')}" for data in refused[:4]),
        fix=f"check the disk that they are on; windlass checkpoints {case.status.id} shows what was kept of them",
        score=SCORE,
    )


def _of_newest_attempt(case: Case) -> list[dict[str, Any]]:
    """What the ranks of the newest attempt reported of checkpoints."""
    found: list[dict[str, Any]] = []
    for event in case.seen.events:
        if event.kind == "attempt":
            found = []
        elif event.kind == "checkpoint":
            found.append(dict(event.data))
    return found
