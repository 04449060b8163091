"""Slots of a target on this machine: order of runs, release by the kernel, and the record of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.clock import START, FakeClock
from tests.supervise.fakes import FakeRun

from windlass.engines.local.admission import Admission
from windlass.engines.local.slots import LOCK, SlotQueue, Ticket, free_slots, why_waiting
from windlass.plan.steps import AfterStep, QueueStep
from windlass.runs.events import QueueChanged, RunEnded
from windlass.runs.phase import Phase
from windlass.runs.store import Store
from windlass.supervise.backend import NotAdmitted
from windlass.supervise.recorder import Recorder

# -- the policy -------------------------------------------------------------------------------------------------------


def test_run_gets_lowest_free_slots() -> None:
    assert free_slots(Ticket("b", 2), [Ticket("a", 2, slots=(0, 2))], 4) == (1, 3)


def test_oldest_run_of_equal_priority_is_next() -> None:
    young, old = Ticket("a", 1, since=20), Ticket("b", 1, since=10)
    assert free_slots(young, [old], 1) == ()
    assert free_slots(old, [young], 1) == (0,)


def test_run_with_higher_priority_is_next_regardless_of_age() -> None:
    low, high = Ticket("a", 1, since=10), Ticket("b", 1, priority=1, since=20)
    assert free_slots(low, [high], 1) == ()
    assert free_slots(high, [low], 1) == (0,)


def test_small_runs_do_not_overtake_a_large_waiting_run() -> None:
    holder, large, small = Ticket("a", 1, slots=(0,)), Ticket("b", 2, since=10), Ticket("c", 1, since=20)
    assert free_slots(small, [holder, large], 2) == ()
    assert free_slots(large, [small], 2) == (0, 1)


def test_slots_above_lowered_number_still_count() -> None:
    assert free_slots(Ticket("b", 1), [Ticket("a", 2, slots=(2, 3))], 2) == ()


def test_reason_names_runs_with_slots_and_runs_ahead() -> None:
    others = [Ticket("a-1", 3, slots=(0, 1, 2)), Ticket("b-1", 2, since=5), Ticket("c-1", 1, since=50)]
    found = why_waiting(Ticket("d-1", 2, since=9), others, 4)
    assert found == "it takes 2 of 4 slots, and 1 is free: a-1 holds 3; ahead of it: b-1, which takes 2"


# -- what processes hold ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def take(queue: SlotQueue, run_id: str, since: float, takes: int = 1, total: int = 1) -> tuple[int, ...]:
    return queue.take(Ticket(run_id, takes, since=since), total)[0]


def test_slots_are_released_when_all_processes_of_run_have_ended(folder: Path) -> None:
    holder, waiting = SlotQueue(folder, "a"), SlotQueue(folder, "b")
    assert take(holder, "a", 1) == (0,)
    assert take(waiting, "b", 2) == ()
    worker = os.dup(holder.lock or -1)  # inherited like the descriptor of a node worker
    holder.close()
    assert take(waiting, "b", 2) == ()
    os.close(worker)
    assert take(waiting, "b", 2) == (0,)


def test_ended_waiting_run_does_not_block_others(folder: Path) -> None:
    holder, first, second = (SlotQueue(folder, name) for name in "abc")
    take(holder, "a", 1)
    take(first, "b", 2)
    assert take(second, "c", 3) == ()
    first.close()
    holder.leave()
    assert take(second, "c", 3) == (0,)
    assert sorted(path.name for path in folder.iterdir()) == [LOCK, "c"]
    assert take(first, "b", 2) == ()  # the slot is taken again


def test_next_supervisor_keeps_slots_of_nodes(folder: Path) -> None:
    killed, again, other = SlotQueue(folder, "a"), SlotQueue(folder, "a"), SlotQueue(folder, "b")
    take(killed, "a", 1)
    worker = os.dup(killed.lock or -1)
    killed.close()
    again.keep()
    os.close(worker)
    assert take(other, "b", 2) == ()
    assert take(again, "a", 5) == (0,)
    again.leave()
    assert take(other, "b", 2) == (0,)


def test_next_supervisor_waits_again_if_nodes_have_ended(folder: Path) -> None:
    killed, again, other = SlotQueue(folder, "a"), SlotQueue(folder, "a"), SlotQueue(folder, "b")
    take(killed, "a", 1)
    killed.close()
    assert take(other, "b", 2) == (0,)
    again.keep()
    assert take(again, "a", 3) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 20_000,
        '{"run_id": "a", "takes": 1, "priority": "x", "since": 1.0, "slots": []}',
        '{"run_id": "a", "takes": 1, "priority": 0, "since": 1.0, "slots": [[]]}',
    ],
)
def test_unreadable_ticket_counts_as_all_slots(folder: Path, text: str) -> None:
    holder, other = SlotQueue(folder, "a"), SlotQueue(folder, "b")
    take(holder, "a", 1, total=4)
    (folder / "a").write_text(text)
    slots, why, _ = other.take(Ticket("b", 1, since=2), 4)
    assert (slots, "none is free: a holds an unknown number, since its file is damaged" in why) == ((), True)
    assert take(holder, "a", 1, total=4) == (0,)  # the holder writes its ticket again
    assert take(other, "b", 2, total=4) == (1,)


def test_folders_in_queue_are_ignored(folder: Path) -> None:
    (folder / "copy").mkdir(parents=True)
    assert take(SlotQueue(folder, "a"), "a", 1) == (0,)


# -- what a run records -----------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    made = FakeRun(tmp_path / "home")
    yield made
    made.close()


def no_update(_store: Store, _run_id: str) -> None:
    """Leaves the record of the other run unchanged."""


def admission(run: FakeRun, **request: Any) -> tuple[Admission, Recorder, FakeClock]:
    steps = (QueueStep(**{"summary": "", "takes": 1, "of": 1, "priority": 0, "gpus": False, **request}),)
    made = Admission(replace(run.plan, steps=steps), run.store.home, no_update)
    return made, Recorder(run.writer, clock=run.clock), run.clock


def other_holder(run: FakeRun, run_id: str = "other-1") -> Admission:
    made = Admission(
        replace(run.plan, run_id=run_id, steps=(QueueStep("", 1, 1, 0, False),)),
        run.store.home,
        no_update,
    )
    assert made.turn(Recorder(run.writer, clock=run.clock), run.clock)
    return made


def test_a_run_that_starts_at_once_records_no_queue(run: FakeRun) -> None:
    mine, record, clock = admission(run)
    assert mine.turn(record, clock)
    assert mine.numbers == (0,)
    assert run.kinds("queue", "phase") == []


def test_waiting_run_is_queued_and_records_each_reason_once(run: FakeRun) -> None:
    holder = other_holder(run)
    mine, record, clock = admission(run)
    for _ in range(5):
        assert not mine.turn(record, clock)
        clock.now += 1
    assert run.status.phase is Phase.QUEUED
    assert run.status.waits_for == ("slots of bed: it takes 1 of 1 slots, and none is free: other-1 holds 1")
    holder.slots.leave()
    assert mine.turn(record, clock)
    assert [event["state"] for event in run.data(QueueChanged.kind)] == ["waiting", "admitted"]


def test_resumed_run_is_queued_while_it_waits(run: FakeRun) -> None:
    other_holder(run)
    run.begin()
    run.writer.append(RunEnded(Phase.FAILED), at=START + 10)
    from windlass.runs.events import RunResumed

    run.writer.append(RunResumed("asked"), at=START + 20)
    mine, record, clock = admission(run)
    clock.now = START + 20
    assert not mine.turn(record, clock)
    assert run.status.phase is Phase.QUEUED
    assert run.status.times.limited_seconds(START + 500) == 0


def test_time_limit_does_not_include_wait(run: FakeRun) -> None:
    holder = other_holder(run)
    mine, record, clock = admission(run)
    assert not mine.turn(record, clock)
    clock.now = START + 100
    assert run.status.times.limited_seconds(clock.now) == 0
    holder.slots.leave()
    assert mine.turn(record, clock)
    run.begin(at=START + 100)
    assert run.status.times.limited_seconds(START + 105) == 5
    assert run.status.times.phases[Phase.QUEUED] == 100


def test_a_queue_that_cannot_be_written_lets_no_run_start(run: FakeRun, tmp_path: Path) -> None:
    mine, record, clock = admission(run)
    (run.store.home / "slots").write_text("not a folder")
    assert not mine.turn(record, clock)
    assert "cannot be read or written" in str(run.status.waits_for)
    assert f"{run.store.home}/slots" in str(run.status.waits_for)


def after(run: FakeRun, *names: str) -> tuple[Admission, Recorder, FakeClock]:
    steps = tuple(AfterStep("", name) for name in names)
    return (
        Admission(replace(run.plan, steps=steps), run.store.home, no_update),
        Recorder(run.writer, clock=run.clock),
        run.clock,
    )


def end_as(run: FakeRun, run_id: str, phase: Phase | None) -> None:
    writer = run.store.create(run_id, name="a", target="bed", output_dir="", plan=run.plan.to_text(), time=START)
    if phase is not None:
        writer.append(RunEnded(phase), at=START + 1)
    writer.close()


def test_run_starts_after_success_of_runs_before_it(run: FakeRun) -> None:
    end_as(run, "a-1", Phase.SUCCEEDED)
    mine, record, clock = after(run, "a-1")
    assert mine.turn(record, clock)


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.STOPPED, Phase.LOST])
def test_run_after_unsuccessful_run_never_starts(run: FakeRun, phase: Phase) -> None:
    end_as(run, "a-1", Phase.SUCCEEDED)
    end_as(run, "b-1", phase)
    mine, record, clock = after(run, "a-1", "b-1")
    with pytest.raises(NotAdmitted, match=f"b-1, after which it was to start, ended as {phase}"):
        mine.turn(record, clock)


def test_run_after_deleted_run_never_starts(run: FakeRun) -> None:
    mine, record, clock = after(run, "gone-1")
    with pytest.raises(NotAdmitted, match=r"gone-1, .* was removed before it was known to have succeeded"):
        mine.turn(record, clock)
