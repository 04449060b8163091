"""Recognizes verdicts on collectives that are caused by uneven inputs: ranks with different numbers of batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from windlass.diagnose.flights import Finding, named, verb
from windlass.diagnose.observations import Observations
from windlass.diagnose.rules.recorded import findings
from windlass.diagnose.verdict import Verdict

EFFECTS: Final = ("collective-mismatch", "collective-not-joined", "rank-left-early")
"""Verdicts that uneven inputs may cause."""
FIX: Final = (
    "give every rank the same number of batches (drop_last=True of the DistributedSampler and the DataLoader), or wrap "
    "the loop in `with model.join():` (DDP's Join for uneven inputs)"
)
AFTER_LAST_STEP: Final = (
    "let every rank come to the collectives after the last step: one inside `if rank == 0:` waits for ranks that "
    "have ended"
)


def explained(case: Observations, found: Verdict) -> Verdict:
    """Returns the verdict, or `uneven-inputs` in its place if it is one of `EFFECTS` and the ranks' printed steps prove
    it.
    """
    if found.code == "rank-left-early" and case.steps and all(step == total for step, total in case.steps.values()):
        done = tuple(
            f"{case.name(rank)} had finished {one[1]:,} of {one[1]:,} steps" for rank, one in case.steps.items()
        )
        return replace(found, evidence=(*found.evidence, *done[:8]), fix=AFTER_LAST_STEP)
    totals: dict[int, list[int]] = {}
    for rank, (_, total) in sorted(case.steps.items()):
        totals.setdefault(total, []).append(rank)
    if len(totals) > 1:
        many = ", ".join(f"{total:,} on {named(ranks)}" for total, ranks in sorted(totals.items()))
        printed = tuple(
            f"{case.name(rank)} has printed step {step:,} of {total:,}"
            for rank, (step, total) in sorted(case.steps.items())[:8]
        )
        summary = f"the ranks have different numbers of batches ({many}), so their collectives do not match"
        return replace(
            found, code="uneven-inputs", summary=summary, rank=None, fix=FIX, evidence=(*printed, *found.evidence)
        )
    mismatch = next((finding for finding in findings(case) if finding.kind == "mismatch"), None)
    if found.code != "collective-mismatch" or mismatch is None or not (more := _repeating(mismatch)):
        return found
    finished = [rank for rank, (step, total) in case.steps.items() if step == total and rank not in more]
    if not finished or any(case.steps[rank][0] == case.steps[rank][1] for rank in more if rank in case.steps):
        return replace(found, fix=f"{found.fix}; or, where the ranks have different numbers of batches: {FIX}")
    batches = f"its {case.steps[finished[0]][1]:,} batches" if len(finished) == 1 else "their batches"
    goes_on = f"{named(more)} {verb(more, 'goes', 'go')} on with the collectives of another one"
    summary = f"{named(finished)} {verb(finished, 'has', 'have')} finished {batches}, and {goes_on}: uneven inputs"
    return replace(found, code="uneven-inputs", summary=summary, rank=None, fix=FIX)


def _repeating(finding: Finding) -> list[int]:
    """Returns the ranks that repeat an earlier collective, as in a loop, while other ranks call a new one; empty if all
    repeat one.
    """
    number, calls = finding.call.number, finding.group.calls
    more = [
        rank
        for rank in finding.joined
        if str(calls[rank][number]) in {str(call) for at, call in calls[rank].items() if at < number}
    ]
    return more if len(more) < len(finding.joined) else []
