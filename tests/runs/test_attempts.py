from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.runs.attempts import asked_to_resume, due_at, resume_environment, why_begun
from windlass.runs.history import History
from windlass.runs.outcome import is_late
from windlass.runs.record import Event, Status, fold

CREATED = {"id": "digits-1", "name": "digits", "target": "local", "output_dir": "/out"}
ATTEMPT = {"number": 1, "world_size": 1, "nodes": [[0]]}


def events(*kinds: tuple[str, Mapping[str, Any]]) -> list[Event]:
    """One event each ten seconds, after the creation at 1000."""
    return [Event(n, 990.0 + 10 * n, kind, data) for n, (kind, data) in enumerate((("created", CREATED), *kinds), 1)]


def told(*kinds: tuple[str, Mapping[str, Any]]) -> tuple[History, Status]:
    seen = events(*kinds)
    return History.of(seen), fold(seen)


def test_a_first_attempt_begins_at_once() -> None:
    assert due_at(events()) == 0.0
    assert why_begun(*told()) == "first"


def test_an_attempt_begins_for_the_reason_that_ended_the_one_before_it_once_its_back_off_is_over() -> None:
    ended = {"phase": "failed", "reason": "node-loss", "restarts_left": 1, "wait_seconds": 4.0}
    seen = (("attempt", ATTEMPT), ("attempt-end", ended))
    assert why_begun(*told(*seen)) == "node-loss"
    assert due_at(events(*seen)) == 1024.0


def test_a_resumed_run_begins_at_once_whatever_its_last_back_off_was() -> None:
    ended = {"phase": "failed", "reason": "failure", "restarts_left": 0, "wait_seconds": 60.0}
    failed: Mapping[str, Any] = {"phase": "failed"}
    seen = (("attempt", ATTEMPT), ("attempt-end", ended), ("end", failed), ("resume", {"from": None}))
    assert why_begun(*told(*seen)) == "resume"
    assert due_at(events(*seen)) == 1040.0


def test_a_checkpoint_that_was_asked_for_reaches_script_and_worker_until_the_script_has_saved() -> None:
    seen: list[tuple[str, Mapping[str, Any]]]
    seen = [("attempt", ATTEMPT), ("end", {"phase": "failed"}), ("resume", {"from": "step-7"})]
    request = {"node": 0, "resume": {"glob": "*.pt"}}
    _, status = told(*seen)
    assert resume_environment(status) == {"WINDLASS_RESUME_FROM": "step-7"}
    asked = asked_to_resume(request, status, events(*seen))
    assert asked["resume"] == {"glob": "*.pt", "named": "step-7", "named_at": 1030.0}
    assert asked_to_resume({"node": 0}, status, events(*seen)) == {"node": 0}
    seen += [("attempt", {**ATTEMPT, "number": 2}), ("checkpoint", {"action": "saved", "step": 9})]
    _, status = told(*seen)
    assert resume_environment(status) == {}
    assert asked_to_resume(request, status, events(*seen)) == request


def test_a_time_limit_counts_from_the_beginning_or_from_a_resume() -> None:
    _, status = told(("attempt", ATTEMPT))
    assert not is_late(status, {"timeout_seconds": None}, 1e9)
    assert not is_late(status, {"timeout_seconds": 60.0}, 1059.0)
    assert is_late(status, {"timeout_seconds": 60.0}, 1060.0)
    _, status = told(("attempt", ATTEMPT), ("end", {"phase": "failed"}), ("resume", {}))
    assert not is_late(status, {"timeout_seconds": 60.0}, 1089.0)
    assert is_late(status, {"timeout_seconds": 60.0}, 1090.0)
