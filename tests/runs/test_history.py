from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.plan.compose import Continuation
from windlass.plan.plan import NO_PLAN
from windlass.runs.events import Event
from windlass.runs.history import History
from windlass.runs.record import Status, fold
from windlass.runs.restart_policy import is_late

CREATED = {"id": "digits-1", "name": "digits", "target": "local", "output_dir": "/out"}
ATTEMPT = {"number": 1, "world_size": 1, "nodes": [[0]]}


def told(*kinds: tuple[str, Mapping[str, Any]]) -> tuple[History, Status]:
    """Returns history and status after one event every ten seconds, the first at 1000."""
    seen = [Event(n, 990.0 + 10 * n, kind, data) for n, (kind, data) in enumerate((("created", CREATED), *kinds), 1)]
    return History.of(seen), fold(seen)


def test_a_first_attempt_begins_at_once() -> None:
    history, status = told()
    assert history.due_at == 0.0
    assert history.why_begun(status) == "first"


def test_an_attempt_begins_for_the_reason_that_ended_the_one_before_it_once_its_back_off_is_over() -> None:
    ended = {"phase": "failed", "reason": "node-loss", "restarts_left": 1, "wait_seconds": 4.0}
    history, status = told(("attempt", ATTEMPT), ("attempt-end", ended))
    assert history.why_begun(status) == "node-loss"
    assert history.due_at == 1024.0


def test_a_resumed_run_begins_at_once_whatever_its_last_back_off_was() -> None:
    ended = {"phase": "failed", "reason": "failure", "restarts_left": 0, "wait_seconds": 60.0}
    failed: Mapping[str, Any] = {"phase": "failed"}
    history, status = told(("attempt", ATTEMPT), ("attempt-end", ended), ("end", failed), ("resume", {"from": None}))
    assert history.why_begun(status) == "resume"
    assert history.due_at == 1040.0


def test_a_checkpoint_that_was_asked_for_reaches_script_and_worker_until_the_script_has_saved() -> None:
    seen: list[tuple[str, Mapping[str, Any]]]
    seen = [("attempt", ATTEMPT), ("end", {"phase": "failed"}), ("resume", {"from": "step-7"})]
    history, status = told(*seen)
    assert history.continuation(status) == Continuation("step-7", 1030.0)
    seen += [("attempt", {**ATTEMPT, "number": 2}), ("checkpoint", {"action": "saved", "step": 9})]
    history, status = told(*seen)
    assert history.continuation(status).resume_from is None


def test_a_time_limit_counts_from_the_beginning_or_from_a_resume() -> None:
    _, status = told(("attempt", ATTEMPT))
    assert not is_late(status, NO_PLAN.policy.replace(timeout_seconds=None), 1e9)
    assert not is_late(status, NO_PLAN.policy.replace(timeout_seconds=60.0), 1059.0)
    assert is_late(status, NO_PLAN.policy.replace(timeout_seconds=60.0), 1060.0)
    _, status = told(("attempt", ATTEMPT), ("end", {"phase": "failed"}), ("resume", {}))
    assert not is_late(status, NO_PLAN.policy.replace(timeout_seconds=60.0), 1089.0)
    assert is_late(status, NO_PLAN.policy.replace(timeout_seconds=60.0), 1090.0)


def test_a_checkpoint_without_a_step_is_not_one_at_step_0() -> None:
    history, _ = told(("attempt", ATTEMPT), ("checkpoint", {"action": "saved"}))
    assert (history.now.saved, history.now.highest) == (True, None)
