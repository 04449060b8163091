"""Runs that were started again, and why they were not once more."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Event


def same_step_twice(case: Case) -> Iterator[Verdict]:
    """The same step ended the job twice in the same way."""
    end = next((event.data for event in reversed(case.seen.events) if event.kind == "end"), {})
    if end.get("reason") != "same-step-twice":
        return
    step, summary = end.get("step"), str(case.cause.get("summary") or "")
    deaths = [(number, cause) for number, cause in _deaths(case) if cause.data.get("summary") == summary]
    evidence = [f"attempt {number}: {cause.data['summary']}" for number, cause in deaths[-2:]]
    evidence += [f"where: {case.where}"] if case.where else []
    yield Verdict(
        "same-step-twice",
        f"after step {step} the job failed twice in the same way: {summary}",
        case.cause.get("rank"),
        (*evidence, "no attempt in between has come further, so it was not started once more"),
        "mend what fails there (the batch after that step, or the script), then go on from the checkpoint: "
        f"windlass resume {case.status.id}",
        100,
    )


def _deaths(case: Case) -> Iterator[tuple[int, Event]]:
    """The first cause of each attempt that failed."""
    number = 0
    for event in case.seen.events:
        if event.kind == "attempt":
            number = event.data["number"]
        elif event.kind == "cause":
            yield number, event
