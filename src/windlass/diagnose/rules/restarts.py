"""Rule on restarts: the job was not restarted, because the same step or the start failed twice in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Verdict
from windlass.runs.events import AttemptStarted, RootCause, RunEnded, RunResumed, entries

SAME_STEP: Final = "same-step-twice"
SAME_ERROR: Final = "an earlier attempt failed at its start in the same way, so the job was not started again"


def ended_by_same_error(case: Observations) -> bool:
    """Whether a repeated error ended the run before its restarts were used up."""
    ends = list(entries(case.events, RunEnded))
    return bool(ends) and case.status.phase.is_terminal and ends[-1].reason == "same-error-twice"


def same_step_twice(case: Observations) -> Iterator[Verdict]:
    """Explains that the same failure ended two attempts at the same step."""
    ends = list(entries(case.events, RunEnded))
    if not ends or ends[-1].reason != SAME_STEP:
        return
    step, summary = ends[-1].step, case.cause.summary
    evidence = [f"attempt {number}: {summary}" for number, cause in deaths(case) if cause.summary == summary][-2:]
    evidence += [f"where: {case.where}"] if case.where else []
    yield Verdict(
        SAME_STEP,
        f"after step {step} the job failed twice in the same way: {summary}",
        case.cause.rank,
        (*evidence, "no attempt has come further, so the job was not started again"),
        f"fix what fails there (the batch after that step, or the script), then {resumed(case)}",
        100,
    )


def cut_before_its_start(case: Observations) -> str:
    """Returns how the attempts ended in a run that reached its time limit before any attempt trained."""
    failed, newest = [number for number, _ in deaths(case)], len(case.status.attempts)
    limit = case.plan.policy.timeout_seconds or 0
    which = f"attempts {failed[0]} to {failed[-1]}" if len(failed) > 1 else f"attempt {failed[0]}"
    return f"{which} failed at the start; the time limit of {limit:g} s ended attempt {newest} before it began to train"


def resumed(case: Observations) -> str:
    """Returns a hint such as `windlass resume RUN continues from step 120`, for an end that the script did not
    cause.
    """
    saved = case.status.checkpoint
    is_usable = saved is not None and not saved.refused and saved.step is not None
    gives = f"continues from step {saved.step:,}" if saved is not None and is_usable else "starts it again"
    if case.status.ending is not None:
        gives = "stores its outputs, and starts no rank"
    return f"windlass resume {case.status.id} {gives}"


def deaths(case: Observations) -> Iterator[tuple[int, RootCause]]:
    """Yields the root cause of each attempt that failed since the run was last resumed."""
    number, found = 0, list[tuple[int, RootCause]]()
    for event in case.events:
        match event.entry:
            case AttemptStarted() as attempt:
                number = attempt.number
            case RootCause(rank=int()) as cause:
                found.append((number, cause))
            case RunResumed():
                found.clear()
    return iter(found)
