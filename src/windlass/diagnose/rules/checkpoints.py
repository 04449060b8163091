"""Rules on damaged checkpoints, found at a restore of the newest attempt or by a script that failed to load one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Verdict
from windlass.runs.events import CheckpointChanged, entries, of_newest_attempt
from windlass.runs.phase import Phase
from windlass.runs.warnings import damaged_fix

SCORE = 20
"""Score of `damaged` if the attempt continues; lower than that of any cause of a failure."""
DAMAGED_SCORE = 106
"""Score of `cut_short`; higher than `same-step-twice`, because this verdict names the damaged file."""
MOST_NAMED = 4
SAVED: Final = re.compile(
    r"checkpoint|ckpt|step|epoch|model|optimizer|weights|state|\b(?:last|latest|best)\b|\.distcp|\.metadata",
    re.IGNORECASE,
)
"""Words in names of files or folders saved by a training script."""

_OF_ONE_SAVE: Final = re.compile(r"(?:checkpoint|ckpt|step|epoch|iter)\D*\d|^\d+$", re.IGNORECASE)
"""Names of folders that contain one checkpoint."""


def damaged(case: Observations) -> Iterator[Verdict]:
    """Explains that damaged checkpoints were skipped, so that work was lost although the run continues."""
    found = list(entries(of_newest_attempt(case.events), CheckpointChanged))
    refused = [one for one in found if one.action == "refused"]
    if not refused or case.status.phase is Phase.SUCCEEDED:
        return
    restored = next((one for one in found if one.action == "restored"), None)
    if restored is not None:
        which = restored.name if restored.step is None else f"step {restored.step}"
        went_on = f"the script was given {which}" if restored.source == "found" else f"training went on from {which}"
    elif any(one.action == "none-verified" for one in found):
        went_on = "no checkpoint is verified, and training began at step 0"
    else:
        return  # the restore is not finished, or ended with a more specific error
    one = refused[0].name if refused[0].step is None else f"the checkpoint of step {refused[0].step}"
    many = f"{len(refused)} checkpoints were" if len(refused) > 1 else f"{one} was"
    yield Verdict(
        "checkpoint-damaged",
        f"{many} not verified; {went_on}",
        evidence=tuple(f"{one.name}: {one.reason}" for one in refused[:4]),
        fix=damaged_fix(case.status.id),
        score=SCORE,
    )


def cut_short(case: Observations) -> Iterator[Verdict]:
    """Explains that the script failed to load a damaged file, which the script itself had chosen."""
    damaged = case.host.damaged_files
    if case.first is None or case.raised is None or not damaged:
        return
    path = PurePosixPath(damaged[0].path)
    evidence = [case.raised.line[:300], *([case.where] if case.where else [])]
    evidence += [f"{one.path}: {one.problem}" for one in damaged[:MOST_NAMED]]
    evidence += [
        f"checkpoint.find has given {one.name} to the script: see whether it loads that one"
        for one in entries(of_newest_attempt(case.events), CheckpointChanged)
        if one.source == "found"
    ]
    own = [PurePosixPath(folder) for folder in (case.code_dir, case.status.output_dir) if folder]
    named = path.name if path.parent in own else "/".join(path.parts[-2:])
    summary = f"{case.who} failed to load a file{case.at_place}, and {named} is damaged: {damaged[0].problem}"
    if not SAVED.search(named):
        fix = f"fetch or write {path} again; the next attempt would find it as it is"
        yield case.of_first("file-corrupt", summary, evidence, fix, DAMAGED_SCORE)
        return
    is_one_save = _OF_ONE_SAVE.search(path.parent.name) and not any(one.is_relative_to(path.parent) for one in own)
    moved = str(path.parent if is_one_save else path)
    fix = (
        f"move it away, or the script picks it again: mv {shlex.quote(moved)} {shlex.quote(f'{moved}.damaged')}; then "
        f"windlass resume {case.status.id}. Let the script save under another name and rename it when whole: os.replace"
    )
    yield case.of_first("checkpoint-damaged", summary, evidence, fix, DAMAGED_SCORE)
