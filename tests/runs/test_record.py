"""Any events of a run, in any order, fold into a consistent status."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windlass.plan.plan import NO_PLAN
from windlass.runs.events import Event, RootCause
from windlass.runs.ledger import fold_ledger
from windlass.runs.phase import EXIT_CODES, TERMINAL, Phase
from windlass.runs.record import Status, advance, fold
from windlass.views.run import run_of
from windlass.views.serialise import to_json

BIRTH = Event(1, 1_700_000_000.0, "created", {"id": "a-1", "name": "a", "target": "local", "output_dir": "/o"})
CLOCK_ERROR = 1e-3  # Unix times have a resolution of 2e-7 s, and some dozens of them are added

times = st.floats(BIRTH.time - 1e6, BIRTH.time + 1e6)
phases = st.sampled_from(list(Phase)).map(str)
ends = st.sampled_from(sorted(TERMINAL)).map(str)
ranks = st.integers(0, 5)
codes = st.integers(-64, 255)
KINDS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "created": st.just(dict(BIRTH.data)),
    "phase": st.fixed_dictionaries({"phase": phases}),
    "attempt": st.fixed_dictionaries(
        {"number": st.integers(1, 9), "world_size": st.just(4)},
        optional={
            "nodes": st.just([[0, 1], [2, 3]]),
            "members": st.sampled_from([[0, 1], [0, 2], [1]]),
            "reason": st.just("resize"),
        },
    ),
    "node": st.fixed_dictionaries({"node": ranks, "pid": ranks, "start_ticks": ranks}),
    "rank": st.fixed_dictionaries({"rank": ranks}, optional={"pid": st.integers(1, 99), "exit_code": codes}),
    "progress": st.dictionaries(st.sampled_from(["step", "loss", "at"]), st.integers(0, 99)),
    "cause": st.fixed_dictionaries({"summary": st.text(max_size=5)}, optional={"rank": ranks}),
    "attempt-end": st.fixed_dictionaries(
        {"phase": st.one_of(ends, st.just("preempted"))},
        optional={"reason": st.just("hang"), "restarts_left": st.integers(0, 3), "died_at": times},
    ),
    "checkpoint": st.fixed_dictionaries(
        {"action": st.sampled_from(["saved", "restored", "refused", "failed", "skipped"]), "step": st.integers(0, 99)}
    ),
    "resume": st.fixed_dictionaries({"reason": st.just("asked")}, optional={"from": st.just("step-00000003-a1")}),
    "notice": st.fixed_dictionaries({"source": st.just("imds"), "action": st.just("terminate")}),
    "hang-end": st.fixed_dictionaries({"since": times, "at": times, "seconds": st.floats(0, 9)}),
    "caught-up": st.fixed_dictionaries({"step": st.integers(0, 99)}),
    "queue": st.fixed_dictionaries(
        {"state": st.sampled_from(["waiting", "requeued", "admitted", "evicted"])},
        optional={"reason": st.just("Pending")},
    ),
    "lost-node": st.fixed_dictionaries({"node": ranks, "why": st.just("killed")}),
    "not-started": st.fixed_dictionaries({"node": ranks, "why": st.just("ended because node 1 failed")}),
    "node-back": st.fixed_dictionaries({"node": ranks}),
    "stop": st.fixed_dictionaries({"now": st.booleans(), "reason": st.text(max_size=5)}),
    "adopted": st.just({}),
    "warning": st.fixed_dictionaries({"message": st.text(max_size=5)}),
    "end": st.fixed_dictionaries({"phase": ends}, optional={"exit_code": codes, "died_at": times}),
    "from-the-future": st.dictionaries(st.text(max_size=3), st.integers()),
}


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Generates the events of a run with repeated or skipped numbers, clocks set back and several ends."""
    events, seq = [BIRTH], 1
    for kind in draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=30)):
        seq += draw(st.sampled_from([1, 1, 1, 1, 0, -1, 5]))
        events.append(Event(max(1, seq), draw(times), kind, draw(KINDS[kind])))
    return events


def wall_clock(status: Status, now: float) -> float:
    end = status.times.ended_at if status.times.ended_at is not None else max(now, status.times.phase_since)
    return end - status.times.created_at


@given(histories(), times)
def test_phases_are_not_negative_and_sum_to_the_wall_clock(events: list[Event], now: float) -> None:
    for length in range(1, len(events) + 1):
        status = fold(events[:length])
        seconds = status.phases_at(now)
        assert all(value >= 0 for value in seconds.values())
        assert math.isclose(sum(seconds.values()), wall_clock(status, now), rel_tol=0, abs_tol=CLOCK_ERROR)
        assert not TERMINAL & {phase for phase, value in seconds.items() if value}


@given(histories())
def test_end_is_final_unless_run_is_resumed(events: list[Event]) -> None:
    status = fold(events[:1])
    for event in events[1:]:
        after = advance(status, event)
        if status.phase.is_terminal and event.kind == "resume" and event.seq > status.last_seq:
            assert (after.phase, after.exit_code, after.supervision.stop_requested) == (Phase.RESTARTING, None, False)
        elif status.phase.is_terminal:
            assert replace(after, last_seq=0) == replace(status, last_seq=0)
        else:
            assert after.phase.is_terminal == (event.kind == "end" and event.seq > status.last_seq)
        assert (after.times.ended_at is not None) == after.phase.is_terminal
        status = after


@given(histories())
@example([BIRTH, Event(2, 1.0, "phase", {"phase": "uploading"}), Event(3, 1.0, "stop", {"now": False, "reason": ""})])
def test_stopping_phase_is_left_only_by_the_end(events: list[Event]) -> None:
    stopping = uploading = False
    status = fold(events[:1])
    for event in events[1:]:
        was_over = status.phase.is_terminal
        status = advance(status, event)
        resumed = was_over and not status.phase.is_terminal
        stopping = (stopping or status.phase is Phase.STOPPING) and not resumed
        uploading = (uploading or status.phase is Phase.UPLOADING) and not resumed
        if stopping:
            assert status.phase is Phase.STOPPING or status.phase.is_terminal
        if status.supervision.stop_requested:
            assert stopping or uploading, "only a run whose results are uploaded keeps its phase"


@given(histories())
def test_repeated_event_number_changes_nothing(events: list[Event]) -> None:
    status = fold(events)
    for event in events:
        assert advance(status, event) == status


@given(histories())
def test_the_numbers_of_a_status_never_go_back(events: list[Event]) -> None:
    status = fold(events[:1])
    for event in events[1:]:
        after = advance(status, event)
        assert after.last_seq == max(status.last_seq, event.seq)
        assert after.times.phase_since >= status.times.phase_since
        assert len(after.attempts) >= len(status.attempts)
        status = after


@given(histories())
def test_attempts_do_not_end_before_they_begin_and_the_last_ends_with_its_run(events: list[Event]) -> None:
    status = fold(events)
    assert all(a.ended_at is None or a.ended_at >= a.started_at for a in status.attempts)
    if status.phase.is_terminal and status.attempts:
        assert status.attempts[-1].ended_at is not None
        assert status.attempts[-1].phase in TERMINAL | {Phase.PREEMPTED}


@given(histories(), times)
def test_every_status_is_json(events: list[Event], now: float) -> None:
    status = fold(events)
    run = run_of(status, NO_PLAN, fold_ledger(events, now), now, is_here=True)
    data = json.loads(json.dumps(to_json(run), allow_nan=False))
    assert data["id"] == status.id
    assert data["phase"] == status.phase


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"created"}))
def test_a_run_begins_with_created(kind: str) -> None:
    with pytest.raises(ValueError, match="begins with 'created'"):
        fold([Event(1, 0.0, kind, {})])


def test_status_without_events_is_refused() -> None:
    with pytest.raises(ValueError, match="without events"):
        fold([])


@pytest.mark.parametrize("phase", sorted(set(Phase) - TERMINAL))
def test_a_run_cannot_end_in_a_phase_that_goes_on(phase: Phase) -> None:
    with pytest.raises(ValueError, match="cannot end as"):
        fold([BIRTH, Event(2, BIRTH.time, "end", {"phase": phase})])


def test_every_end_has_an_exit_code_and_nothing_else_has() -> None:
    assert set(EXIT_CODES) == set(TERMINAL)
    assert EXIT_CODES[Phase.SUCCEEDED] == 0
    assert 0 not in [EXIT_CODES[phase] for phase in TERMINAL - {Phase.SUCCEEDED}]


def test_two_attempts_and_a_stop_fold_into_status() -> None:
    story: list[tuple[float, str, dict[str, Any]]] = [
        (1, "attempt", {"number": 1, "world_size": 2, "nodes": [[0], [1]]}),
        (2, "rank", {"rank": 0, "pid": 70}),
        (2, "rank", {"rank": 1, "pid": 71}),
        (3, "phase", {"phase": "training"}),
        (10, "rank", {"rank": 1, "exit_code": -9}),
        (10, "cause", {"rank": 1, "summary": "killed"}),
        (11, "attempt-end", {"phase": "failed"}),
        (14, "attempt", {"number": 2, "world_size": 2, "nodes": [[0], [1]]}),
        (16, "phase", {"phase": "training"}),
        (18, "phase", {"phase": "checkpointing"}),
        (19, "phase", {"phase": "training"}),
        (30, "stop", {"now": False, "reason": "asked"}),
        (31, "phase", {"phase": "checkpointing"}),
        (33, "end", {"phase": "stopped", "exit_code": 0}),
    ]
    events = [Event(n, BIRTH.time + t, kind, data) for n, (t, kind, data) in enumerate(story, 2)]
    middle, status = fold([BIRTH, *events[:6]]), fold([BIRTH, *events])
    assert [(state.rank, state.node, state.exit_code) for state in middle.ranks] == [(0, 0, None), (1, 1, -9)]
    assert middle.cause == RootCause("killed", 1)
    assert status.phase is Phase.STOPPED
    assert [(a.number, str(a.phase)) for a in status.attempts] == [(1, "failed"), (2, "stopped")]
    assert status.cause is None  # the cause of the previous attempt is dropped
    assert {str(phase): seconds for phase, seconds in status.times.phases.items()} == {
        "queued": 1,
        "starting": 4,
        "training": 8 + 2 + 11,
        "restarting": 3,
        "checkpointing": 1,
        "stopping": 3,
    }


def story(*told: tuple[float, str, dict[str, Any]]) -> Status:
    """Returns the status after events at these seconds since the creation."""
    return fold([BIRTH, *(Event(n, BIRTH.time + t, kind, data) for n, (t, kind, data) in enumerate(told, 2))])


def attempt(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, "world_size": 2, "nodes": [[0], [1]], **more}


def test_attempt_whose_damaged_event_has_no_members_has_its_first_nodes() -> None:
    (only,) = story((1, "attempt", {"number": 1, "world_size": 4, "nodes": [[0, 1], [2, 3]]})).attempts
    assert only.members == (0, 1)


def test_an_attempt_says_why_it_ended_and_where_it_began() -> None:
    status = story(
        (1, "attempt", attempt(1, members=[0, 1], reason="first")),
        (2, "checkpoint", {"action": "saved", "step": 20, "name": "step-00000020-a1", "bytes": 7}),
        (3, "checkpoint", {"action": "skipped", "step": 30, "name": ""}),
        (4, "attempt-end", {"phase": "preempted", "reason": "preemption", "restarts_left": 2, "wait_seconds": 0}),
        (5, "attempt", attempt(2, members=[0, 2], reason="preemption")),
        (6, "checkpoint", {"action": "restored", "step": 20, "name": "step-00000020-a1"}),
    )
    first, second = status.attempts
    assert (first.phase, first.reason, first.restored_step, first.members) == (
        Phase.PREEMPTED,
        "preemption",
        None,
        (0, 1),
    )
    assert (second.reason, second.restored_step) == (None, 20)
    assert [state.node for state in status.ranks] == [0, 2]
    assert status.checkpoint is not None
    assert status.checkpoint.to_json() == {
        "action": "saved",
        "step": 20,
        "name": "step-00000020-a1",
        "bytes": 7,
        "at": BIRTH.time + 2,
    }
    assert status.restarts_left == 2
    assert second.members == (0, 2)


def test_a_resumed_run_goes_on_and_the_gap_was_idle() -> None:
    told: list[tuple[float, str, dict[str, Any]]] = [
        (1, "attempt", attempt(1)),
        (2, "stop", {"now": False, "reason": "asked"}),
        (3, "end", {"phase": "stopped", "exit_code": 0, "reason": "stop"}),
        (103, "resume", {"reason": "asked", "from": "step-00000020-a1"}),
    ]
    status = story(*told)
    assert (status.phase, status.times.ended_at, status.exit_code, status.supervision.stop_requested) == (
        Phase.RESTARTING,
        None,
        None,
        False,
    )
    assert (status.times.phases[Phase.IDLE], status.resume_from) == (100, "step-00000020-a1")
    assert (status.attempts[0].phase, status.attempts[0].reason) == (Phase.STOPPED, "stop")
    told += [
        (104, "attempt", attempt(2, reason="resume")),
        (105, "checkpoint", {"action": "saved", "step": 30, "name": "x"}),
    ]
    assert story(*told).resume_from is None
    assert [one.is_resume for one in story(*told).attempts] == [False, True]
    told += [(110, "end", {"phase": "succeeded", "exit_code": 0})]
    assert sum(story(*told).times.phases.values()) == 110


def test_time_after_unobserved_end_is_idle() -> None:
    end = {"phase": "failed", "reason": "node-loss", "restarts_left": 0, "died_at": BIRTH.time + 10}
    status = story((1, "attempt", attempt(1)), (4, "phase", {"phase": "training"}), (50, "attempt-end", end))
    assert status.phase is Phase.RESTARTING
    assert {str(phase): seconds for phase, seconds in status.times.phases.items()} == {
        "queued": 1,
        "starting": 3,
        "training": 6,
        "idle": 40,
    }
    assert status.attempts[0].ended_at == BIRTH.time + 10


def test_all_restarts_are_left_until_one_is_used_and_again_after_a_resume() -> None:
    birth = Event(1, BIRTH.time, "created", {**BIRTH.data, "restarts": 3})
    attempt = {"number": 1, "world_size": 1, "nodes": [[0]]}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("attempt", attempt),
        ("attempt-end", {"phase": "failed", "reason": "failure", "restarts_left": 2}),
        ("end", {"phase": "failed"}),
        ("resume", {"reason": "asked", "restarts": 5}),
    ]
    events = [birth, *(Event(n, BIRTH.time + n, kind, data) for n, (kind, data) in enumerate(kinds, 2))]
    assert [fold(events[:n]).restarts_left for n in range(1, 6)] == [3, 3, 2, 2, 5]
    assert fold([BIRTH]).restarts_left is None, "an older record does not say"


MACHINE = {"name": "gpus-7x2kq", "pool": "gpus", "instance_type": "g5.12xlarge", "capacity_type": "spot", "zone": "a"}


def test_waiting_run_reports_provisioning_progress() -> None:
    begun = [BIRTH, Event(2, BIRTH.time, "attempt", {"number": 1, "world_size": 1, "nodes": [[0]]})]
    waits = [
        *begun,
        Event(3, BIRTH.time, "phase", {"phase": "queued"}),
        Event(4, BIRTH.time, "phase", {"phase": "provisioning"}),
        Event(5, BIRTH.time, "machine", {**MACHINE, "state": "launched"}),
    ]
    assert fold(waits).waits_for == "node g5.12xlarge (spot, a) of gpus: launched"
    assert fold([*waits, Event(6, BIRTH.time, "machine", {**MACHINE, "state": "gone"})]).waits_for is not None
    pulling = [*waits, Event(6, BIRTH.time + 9, "phase", {"phase": "pulling"})]
    assert (fold(pulling).waits_for, fold(pulling).times.phases[Phase.PROVISIONING]) == (None, 9.0)


def test_lines_are_missing_of_ranks_alone_whatever_tags_a_pod_reports() -> None:
    """A single unreadable warning would make the whole record unreadable."""
    missing = {"n": 1, "w": 2, "\N{SUPERSCRIPT TWO}": 3, "9" * 5000: 4, "0": 5}
    events = [
        Event(1, 1.0, "created", {"id": "a-1", "name": "a", "target": "lab", "output_dir": "/o"}),
        Event(2, 2.0, "attempt", {"number": 1, "world_size": 1, "nodes": [[0]]}),
        Event(3, 3.0, "warning", {"message": "lines are missing", "missing": missing}),
    ]
    assert [(one.rank, one.lines) for one in fold(events).dropped] == [(0, 5)]


def test_node_deleted_after_end_does_not_change_status() -> None:
    ended = fold([BIRTH, Event(2, BIRTH.time + 5, "end", {"phase": "succeeded", "exit_code": 0})])
    after = advance(ended, Event(3, BIRTH.time + 99, "machine", {**MACHINE, "state": "gone", "left": 0}))
    assert after == replace(ended, last_seq=3)
