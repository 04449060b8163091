"""Ranks that did not end within the grace period are explained, in stopped runs and at the time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.test_rules import IN_ALL_REDUCE, IN_LOADING, hang, seen

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import RankSeen
from windlass.diagnose.verdict import Verdict
from windlass.plan.plan import NO_PLAN
from windlass.runs.phase import Phase
from windlass.runs.restart_policy import TIMEOUT_EXIT_CODE
from windlass.spec.labels import SERVICE_LABEL

OVER = (
    "warning",
    {"message": "rank 0 had not exited 10 s after SIGTERM (grace), and was killed", "code": "grace-over"},
)
STOP = ("stop", {"reason": "asked"}), ("shutdown", {"reason": "stop"})
KILLED = RankSeen(0, exit_code=-9, ended_by_us=True)


def ended(
    *more: tuple[str, dict[str, Any]], phase: Phase = Phase.STOPPED, ranks: Sequence[RankSeen] = (KILLED,)
) -> Verdict:
    code = TIMEOUT_EXIT_CODE if phase is Phase.FAILED else 137
    cause = {"summary": "the timeout was reached", "victims": []} if phase is Phase.FAILED else None
    case = seen(phase, ranks=ranks, more=[("rank", {"rank": 0, "pid": 7}), *more], exit_code=code, cause=cause)
    plan = replace(NO_PLAN, policy=NO_PLAN.policy.replace(grace_seconds=10.0, timeout_seconds=60.0))
    return diagnose(replace(case, plan=plan)).verdict


@pytest.mark.parametrize(("phase", "code"), [(Phase.STOPPED, "stopped"), (Phase.FAILED, "timeout")])
def test_a_rank_that_did_not_finish_within_its_grace_needs_more_of_it(phase: Phase, code: str) -> None:
    begun = STOP if phase is Phase.STOPPED else (("shutdown", {"reason": "timeout"}),)
    verdict = ended(*begun, hang(IN_LOADING, reason=code.replace("stopped", "stop")), OVER, phase=phase)
    assert verdict.code == code
    said = "rank 0 received SIGTERM and had not exited 10 s later (grace), so it was killed: 0 saves were recorded"
    assert said in verdict.summary
    assert verdict.fix.startswith("raise grace: (now 10 s) above the script's longest step")
    assert "nothing to fix" not in verdict.fix
    assert "the script was at data.py:3 in read" in verdict.evidence


def test_saves_that_were_recorded_after_the_signal_are_counted_and_no_earlier_ones() -> None:
    saved = "checkpoint", {"action": "saved", "step": 4, "name": "step-4"}
    assert "1 save was recorded after the signal" in ended(saved, *STOP, saved, OVER).summary


def test_a_rank_that_ended_in_time_or_waits_for_others_is_not_helped_by_grace() -> None:
    assert ended(*STOP).fix.startswith("nothing to fix")
    waits = ended(*STOP, hang(IN_ALL_REDUCE, reason="stop"), OVER)
    assert (waits.code, waits.fix.startswith("nothing to fix")) == ("stopped", True)
    exited = ended(*STOP, OVER, ranks=[RankSeen(0, exit_code=0)])
    assert exited.fix.startswith("nothing to fix"), "it has exited while it was killed"


def test_more_grace_is_no_fix_for_a_rank_that_ignores_the_signal() -> None:
    fix = "let the script exit on SIGTERM, which it ignores (SIG_IGN): more grace does not help"
    assert ended(*STOP, (OVER[0], {**OVER[1], "fix": fix})).fix.startswith(f"{fix}; windlass resume r-1")


def test_a_service_that_ended_at_its_time_limit_is_not_to_be_resumed() -> None:
    begun: list[tuple[str, dict[str, Any]]] = [("rank", {"rank": 0, "pid": 7}), ("shutdown", {"reason": "timeout"})]
    case = seen(Phase.FAILED, ranks=[KILLED], more=begun, exit_code=TIMEOUT_EXIT_CODE, cause={"summary": "timeout"})
    about = replace(case.status.about, labels={SERVICE_LABEL: "deployment"})
    verdict = diagnose(replace(case, status=replace(case.status, about=about))).verdict
    assert (verdict.code, verdict.summary) == ("timeout", "the service has ended at its time limit")
    assert verdict.fix == "nothing to fix: windlass deploy starts another, and --for TIME sets a longer limit"
