"""Turns observations into one verdict and what else speaks for something."""

from __future__ import annotations

from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.rules import RULES
from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import NONE, Diagnosis, Verdict
from windlass.runs.record import Phase

EFFECTS: Final = frozenset({
    "exception", "native-abort", "connection-lost", "exit-code", "exit-without-a-word", "collective-stuck", "bus-error",
    "pods-not-made", "not-scheduled", "pods-waiting", "unschedulable", "machine-coming",
    "machines-pending",
})  # fmt: skip
"""How a cause shows itself."""
BESIDES: Final = 5
"""Score of what is true of a run, and does not end one."""


def diagnose(seen: Observations) -> Diagnosis:
    """The likeliest explanation of how a run ended. `none` only where nothing failed."""
    case = Case(seen)
    found: dict[str, Verdict] = {}
    for rule in RULES:
        for verdict in rule(case):
            if verdict.code not in found or verdict.score > found[verdict.code].score:
                found[verdict.code] = verdict
    ranked = sorted(found.values(), key=lambda verdict: -verdict.score)
    has_failed = case.status.phase.is_terminal and case.status.phase is not Phase.SUCCEEDED
    if not ranked or (has_failed and ranked[0].score <= BESIDES):
        ranked.insert(0, _nothing_seen(case))
    best = ranked[0]
    # What is but the same event seen from farther off is no other explanation.
    others = [other for other in ranked[1:] if other.code not in EFFECTS]
    return Diagnosis(best, tuple(others))


def _nothing_seen(case: Case) -> Verdict:
    status = case.status
    if status.phase is Phase.SUCCEEDED:
        return Verdict(NONE, "the run succeeded; nothing is wrong")
    if not status.phase.is_terminal:
        return Verdict(NONE, f"the run is {status.phase}; nothing is wrong so far")
    return Verdict(
        "unknown",
        str(status.cause.get("summary") or "") if status.cause else f"the run is {status.phase}, and nothing says why",
        status.cause.get("rank") if status.cause else None,
        fix=f"read what there is: windlass logs {status.id}; windlass events {status.id}",
    )
