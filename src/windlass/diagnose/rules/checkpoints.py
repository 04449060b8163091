"""Rules on checkpoints that the newest attempt found damaged when it restored."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Verdict
from windlass.runs.events import CheckpointChanged, entries, of_newest_attempt
from windlass.runs.phase import Phase

SCORE = 20
"""Below every cause of a failure: the attempt goes on."""


def damaged(case: Observations) -> Iterator[Verdict]:
    """Work was lost because checkpoints are damaged, though the run goes on."""
    found = list(entries(of_newest_attempt(case.events), CheckpointChanged))
    refused = [one for one in found if one.action == "refused"]
    if not refused or case.status.phase is Phase.SUCCEEDED:
        return
    restored = next((one for one in found if one.action == "restored"), None)
    if restored is not None:
        went_on = f"training went on from step {restored.step}"
    elif any(one.action == "none-verified" for one in found):
        went_on = "no checkpoint is verified, and training began at step 0"
    else:
        return  # the restore goes on, or ended with an error that says more
    many = f"{len(refused)} checkpoints were" if len(refused) > 1 else f"the checkpoint of step {refused[0].step} was"
    yield Verdict(
        "checkpoint-damaged",
        f"{many} not verified; {went_on}",
        evidence=tuple(f"{one.name}: {one.reason}" for one in refused[:4]),
        fix=f"check the disk that they are on; windlass checkpoints {case.status.id} shows what was kept of them",
        score=SCORE,
    )
