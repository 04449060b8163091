"""Turns observations into one verdict, alternative explanations, and a list of what could not be observed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from windlass.diagnose.flights import named, verb
from windlass.diagnose.observations import Observations, Rule
from windlass.diagnose.rules import (
    checkpoints,
    collectives,
    deaths,
    elastic,
    endings,
    exceptions,
    ports,
    recorded,
    restarts,
    uneven,
)
from windlass.diagnose.verdict import NONE, Diagnosis, Verdict
from windlass.runs import events
from windlass.runs.phase import Phase
from windlass.runs.record import ROTATED
from windlass.runs.warnings import RunWarning

RULES: Final[tuple[Rule, ...]] = (
    endings.stopped,
    endings.timeout,
    endings.lost,
    endings.node_killed,
    endings.data_not_staged,
    endings.data_locked,
    endings.outputs_not_uploaded,
    endings.outputs_refused,
    endings.could_not_start,
    endings.record_disk_full,
    restarts.same_step_twice,
    exceptions.main_guard,
    elastic.world_size_changed,
    collectives.silent,
    recorded.collectives,
    collectives.mismatch,
    collectives.left_early,
    collectives.reports_timeout,
    collectives.rendezvous,
    exceptions.known,
    ports.taken,
    exceptions.nan_loss,
    exceptions.any_other,
    deaths.killed,
    deaths.segfault,
    deaths.aborted,
    deaths.signalled,
    deaths.of_mpi,
    deaths.exit_code,
    deaths.of_child,
    checkpoints.damaged,
    checkpoints.cut_short,
)
"""All rules in order. Of verdicts with equal scores, that of the earlier rule wins."""
BESIDES: Final = 5
"""Score of verdicts on conditions that do not end a run."""
LACKING: Final = {
    events.DISK_FULL: "the disk was full",
    ROTATED: "the log had lost them when it was read",
}
"""Texts for the reasons of missing log lines."""
_RESTARTS: Final = re.compile(r"restarts: \{max: \d+, on: \[([^\]]+)\]\}")
BEGUN: Final = (Phase.TRAINING, Phase.CHECKPOINTING)


def diagnose(seen: Observations) -> Diagnosis:
    """Returns the most likely explanation of how a run ended; code `none` only if nothing failed."""
    case = seen.unstyled()
    found: dict[str, Verdict] = {}
    for rule in (*case.rules, *RULES):
        for verdict in rule(case):
            if verdict.code in uneven.EFFECTS:
                verdict = uneven.explained(case, verdict)
            if verdict.code not in found or verdict.score > found[verdict.code].score:
                found[verdict.code] = verdict
    known = (replace(verdict, fix=_beyond_the_job(case, verdict.fix)) for verdict in found.values())
    ranked = sorted(known, key=lambda verdict: -verdict.score)
    has_failed = case.status.phase.is_terminal and case.status.phase is not Phase.SUCCEEDED
    if not ranked and not has_failed and case.status.warnings:
        ranked.append(_of_warning(case, case.status.warnings[0]))
    if not ranked or (has_failed and ranked[0].score <= BESIDES):
        ranked.insert(0, _unexplained(case))
    if case.earlier is not None and (before := diagnose(case.earlier).verdict).code not in (NONE, "unknown"):
        ranked.insert(0, replace(before, evidence=(*before.evidence, restarts.cut_before_its_start(case))))
    if restarts.ended_by_same_error(case):
        ranked[0] = replace(ranked[0], evidence=(*ranked[0].evidence, restarts.SAME_ERROR))
    if ranked[0].code == restarts.SAME_STEP and len(ranked) > 1 and not ranked[1].is_effect and ranked[1].fix:
        ranked[0] = replace(ranked[0], fix=f"{ranked[1].fix}; {ranked[0].fix}")
    others = [other for other in ranked[1:] if not other.is_effect]
    return Diagnosis(ranked[0], tuple(others), tuple(_not_seen(case)))


def _of_warning(case: Observations, warning: RunWarning) -> Verdict:
    """Returns the verdict on a run that did not fail but has warnings: its first warning."""
    but = "the run succeeded, but " if case.status.phase is Phase.SUCCEEDED else ""
    rank = warning.ranks[0] if len(warning.ranks) == 1 else None
    where = f" (rank {rank})" if rank is not None and len(case.status.ranks) > 1 else ""
    return Verdict(warning.code, but + warning.message + where, rank, fix=warning.fix, score=BESIDES)


def _beyond_the_job(case: Observations, fix: str) -> str:
    """Replaces advice to set `restarts:` in a job that already sets it, by the remaining restarts or a larger
    maximum.
    """
    policy, status = case.plan.policy, case.status
    most = policy.max_restarts
    left = most if status.restarts_left is None else status.restarts_left

    def known(advised: re.Match[str]) -> str:
        if not most or not set(advised[1].split(", ")) <= set(policy.restart_on):
            return advised[0]
        if left and status.phase.is_terminal:
            return advised[0]
        return f"restarts: of the job ({left} left)" if left else f"a larger restarts: max: (the {most} are used up)"

    return _RESTARTS.sub(known, fix)


def _unexplained(case: Observations) -> Verdict:
    status = case.status
    is_unread = bool(case.not_seen or status.dropped)
    if status.phase is Phase.SUCCEEDED:
        return Verdict(NONE, "the run succeeded; nothing is wrong" + (" in what could be read" if is_unread else ""))
    if not status.phase.is_terminal:
        so_far = "in what could be read" if is_unread else "so far"
        return Verdict(NONE, f"the run is {status.phase}; nothing is wrong {so_far}")
    return Verdict(
        "unknown",
        f"the run is {status.phase}; no reason was reported" if status.cause is None else status.cause.summary,
        case.cause.rank,
        fix=f"read what there is: windlass logs {status.id}; windlass events {status.id}",
    )


def _not_seen(case: Observations) -> Iterator[str]:
    """Yields unreadable data with the reasons, so that "nothing is wrong so far" is not taken for a full check."""
    yield from case.not_seen
    for why in dict.fromkeys(one.why for one in case.status.dropped):
        lacking = [one for one in case.status.dropped if one.why == why]
        ranks = named(sorted({one.rank for one in lacking}))
        yield f"{sum(one.lines for one in lacking):,} lines of the output of {ranks}: {LACKING.get(why, why)}"
    if case.status.phase not in BEGUN:
        return
    if quiet := [seen.rank for seen in case.ranks if seen.last_output_at is None]:
        yield f"the output of {named(quiet)}: none was received yet"
    silence = case.silence()
    if silence is None:
        hang = case.plan.policy.hang_seconds
        when = f"they are taken after {hang:g} s without output (hang:)" if hang else "the job has no hang:"
        yield f"where the ranks are now: no stacks were taken, {when}"
    else:
        if missing := sorted(rank for rank, stack in silence.stacks.items() if not stack):
            yield f"where {named(missing)} {verb(missing, 'was', 'were')}: no stack could be taken"
        if absent := [state.rank for state in case.status.ranks if state.rank not in silence.stacks]:
            yield f"where {named(absent)} {verb(absent, 'was', 'were')}: their nodes have not answered"
    yield "memory, disks and limits of the nodes: these are read when a rank fails"
