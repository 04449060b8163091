"""The phases of a ledger sum to the wall time in every run, and each rule labels the right intervals."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.spans import spans

from windlass.runs.attempt_time import MICRO
from windlass.runs.events import Event
from windlass.runs.ledger import Restart, fold_ledger, ledger_of, restarts
from windlass.runs.phase import TERMINAL, Phase
from windlass.runs.record import fold
from windlass.runs.start import Origin, Start
from windlass.runs.time_accounting import Spent, Tally
from windlass.views.serialise import to_json

BORN = 1_700_000_000.0
BIRTH = Event(1, BORN, "created", {"id": "a-1", "name": "a", "target": "local", "output_dir": "/o"})

MOMENTS = ("since", "at", "blocked_at", "died_at", "observed_until")
Story = list[tuple[float, str, dict[str, Any]]]


def told(story: Story) -> list[Event]:
    """Returns the events of a run, with all times relative to its start."""
    found = [BIRTH]
    for seq, (at, kind, data) in enumerate(story, 2):
        moved = {name: BORN + value if name in MOMENTS else value for name, value in data.items()}
        found.append(Event(seq, BORN + at, kind, moved))
    return found


def spent(story: Story, now: float = 1000.0) -> dict[str, float]:
    return {str(name): seconds for name, seconds in fold_ledger(told(story), BORN + now).seconds.items()}


def attempt(number: int = 1, nodes: int = 1, **more: Any) -> dict[str, Any]:
    return {"number": number, "world_size": nodes, "nodes": [[rank] for rank in range(nodes)], **more}


BEGIN: Story = [(0, "attempt", attempt()), (2, "phase", {"phase": "training"})]


def end(at: float, phase: str = "succeeded", **more: Any) -> Story:
    return [(at, "end", {"phase": phase, "exit_code": 0, **more})]


# -- the rules, one by one --------------------------------------------------------------------------------------------


def test_a_node_that_is_lost_with_a_clock_that_is_ahead_was_lost_when_that_was_noticed() -> None:
    story: Story = [
        *BEGIN,
        (31, "lost-node", {"node": 1, "why": "its node does not answer", "since": 90.0}),
        (41, "attempt-end", {"phase": "failed", "reason": "node-loss"}),
        *end(43),
    ]
    assert spent(story)["restarting"] >= 10


@pytest.mark.parametrize(("progressed_at", "lost_from"), [(9.0, 10.0), (20.0, 20.0)])
def test_the_time_until_the_loss_of_a_node_is_noticed_is_lost(progressed_at: float, lost_from: float) -> None:
    """The last sign of life was at 10; peers that made progress later were not waiting for the node."""
    story: Story = [
        *BEGIN,
        (progressed_at, "progress", {"step": 4}),
        (31, "lost-node", {"node": 1, "why": "its node does not answer", "since": 10.0}),
        (31, "attempt-end", {"phase": "failed", "reason": "node-loss", "restarts_left": 2}),
        (31, "attempt", attempt(2, reason="node-loss")),
        (33, "phase", {"phase": "training"}),
        *end(43),
    ]
    assert spent(story)["restarting"] == 31 - lost_from
    assert restarts(told(story))[0].seconds == 31 - lost_from
    assert fold_ledger(told(story), BORN + 43).goodput < 1 - (31 - lost_from) / 43


def test_a_quiet_run_starts_and_trains() -> None:
    assert spent([(1, "attempt", attempt()), *BEGIN[1:], *end(12)]) == {"queued": 1, "starting": 1, "training": 10}


def test_machines_that_are_made_are_held_and_the_time_after_the_end_is_not_counted() -> None:
    story: Story = [
        (0, "attempt", attempt()),
        (1, "phase", {"phase": "queued"}),
        (4, "phase", {"phase": "provisioning"}),
        (10, "phase", {"phase": "training"}),
        *end(20),
        (99, "machine", {"name": "gpus-1", "state": "gone", "left": 0}),
    ]
    assert spent(story) == {"queued": 3.0, "provisioning": 6.0, "starting": 1.0, "training": 10.0}
    assert fold_ledger(told(story), BORN + 1000).node_seconds[Spent.PROVISIONING] == 6.0


def test_spares_are_held_as_long_as_nodes_are() -> None:
    story: Story = [
        (0, "attempt", attempt(nodes=2)),
        (1, "phase", {"phase": "queued"}),
        (4, "phase", {"phase": "training"}),
        *end(14),
    ]
    held = fold_ledger(told(story), BORN + 1000, num_spares=1).node_seconds
    assert (held[Spent.TRAINING], held.get(Spent.QUEUED)) == (30.0, None)


def test_a_run_that_goes_on_is_counted_up_to_now() -> None:
    assert spent(BEGIN, now=9) == {"starting": 2, "training": 7}


def test_a_saved_checkpoint_takes_its_blocked_seconds_from_training() -> None:
    saved = {"action": "saved", "step": 5, "blocked_at": 4, "blocked_seconds": 0.5}
    assert spent([*BEGIN, (6, "checkpoint", saved), *end(12)]) == {
        "starting": 2,
        "training": 9.5,
        "checkpointing": 0.5,
    }


def test_time_that_the_script_reports_as_checkpointing_is_that() -> None:
    story = [*BEGIN, (4, "phase", {"phase": "checkpointing"}), (5, "phase", {"phase": "training"}), *end(12)]
    assert spent(story)["checkpointing"] == 1


def test_a_hang_lasts_from_the_last_sign_of_life_to_the_next() -> None:
    hang = {"since": 4, "seconds": 1.0, "node": 0, "reason": "silence", "ranks": []}
    story = [*BEGIN, (5, "hang", hang), (9, "hang-end", {"since": 4, "at": 9, "seconds": 5}), *end(12)]
    assert spent(story) == {"starting": 2, "training": 5, "hung": 5}


def test_a_hang_of_several_nodes_is_one_hang() -> None:
    hang = {"since": 4, "seconds": 1.0, "reason": "silence", "ranks": []}
    story = [
        *BEGIN,
        (5, "hang", {**hang, "node": 0}),
        (8, "hang-end", {"since": 4, "at": 8, "seconds": 4}),
        (8.1, "hang", {**hang, "node": 1}),
        *end(12),
    ]
    assert spent(story)["hung"] == 4


def test_a_second_hang_is_counted_too() -> None:
    hang = {"seconds": 1.0, "node": 0, "reason": "silence", "ranks": []}
    story = [
        *BEGIN,
        (4, "hang", {**hang, "since": 3}),
        (5, "hang-end", {"since": 3, "at": 5, "seconds": 2}),
        (8, "hang", {**hang, "since": 7}),
        (10, "hang-end", {"since": 7, "at": 10, "seconds": 3}),
        *end(12),
    ]
    assert spent(story)["hung"] == 5


def test_a_hang_without_an_end_lasts_until_its_ranks_are_ended() -> None:
    hang = {"since": 4, "seconds": 3.0, "node": 0, "reason": "silence", "ranks": []}
    story = [
        *BEGIN,
        (7, "hang", hang),
        (8, "rank", {"rank": 0, "exit_code": -9}),
        (8.5, "attempt-end", {"phase": "failed", "reason": "hang"}),
        (9, "attempt", attempt(2)),
        *end(12),
    ]
    assert spent(story) == {"starting": 5, "training": 2, "hung": 4, "restarting": 1}


def test_a_start_that_is_silent_for_long_and_then_works_is_a_start() -> None:
    hang = {"since": 0, "seconds": 1.0, "node": 0, "reason": "silence", "ranks": []}
    news: Story = [(1, "hang", hang), (3, "hang-end", {"since": 0, "at": 3, "seconds": 3})]
    story = [BEGIN[0], *news, (3, "phase", {"phase": "training"}), *end(9)]
    assert spent(story) == {"starting": 3, "training": 6}
    assert spent([BEGIN[0], *news[:1], *end(9, "failed")]) == {"hung": 9}


def test_grace_period_after_time_limit_is_not_training() -> None:
    story = [*BEGIN, (8, "shutdown", {"reason": "timeout"}), *end(12, "failed", reason="timeout")]
    assert spent(story) == {"starting": 2, "training": 6, "stopping": 4}


def test_stacks_dumped_before_a_stop_are_not_a_hang() -> None:
    hang = {"since": 4, "seconds": 6.0, "node": 0, "reason": "stop", "ranks": []}
    story = [*BEGIN, (10, "hang", hang), (10, "stop", {"reason": "asked"}), *end(12, "stopped")]
    assert spent(story) == {"starting": 2, "training": 8, "stopping": 2}


def test_restarting_is_from_the_first_failed_rank_to_the_next_attempt() -> None:
    story = [
        *BEGIN,
        (6, "rank", {"rank": 0, "exit_code": -9}),
        (7, "attempt-end", {"phase": "failed"}),
        (9, "attempt", attempt(2)),
        (10, "phase", {"phase": "training"}),
        *end(12),
    ]
    assert spent(story) == {"starting": 3, "training": 6, "restarting": 3}


def test_a_failure_that_ends_the_run_is_no_restart() -> None:
    story = [*BEGIN, (6, "rank", {"rank": 0, "exit_code": 1}), *end(7, "failed")]
    assert spent(story) == {"starting": 2, "training": 4, "stopping": 1}


def killed(at: float, **restored: Any) -> Story:
    """Returns a story in which a rank dies and the next attempt starts a second later, trains after another second, and
    may restore a checkpoint.
    """
    news: Story = [(at + 1.5, "checkpoint", {"action": "restored", **restored})] if restored else []
    return [
        (at, "rank", {"rank": 0, "exit_code": -9}),
        (at, "attempt-end", {"phase": "failed", "reason": "failure"}),
        (at + 1, "attempt", attempt(2, reason="failure")),
        *news,
        (at + 2, "phase", {"phase": "training"}),
    ]


def test_redone_is_from_the_training_start_until_it_has_caught_up() -> None:
    story = [*BEGIN, (9, "progress", {"step": 10}), *killed(10, step=6), (15, "caught-up", {"step": 10}), *end(20)]
    ledger = fold_ledger(told(story), BORN)
    assert ledger.seconds == {Spent.STARTING: 3, Spent.TRAINING: 8 + 5, Spent.REDONE: 3, Spent.RESTARTING: 1}
    assert ledger.steps_redone == 4
    assert ledger.goodput == pytest.approx(13 / 20)


def test_attempt_from_beginning_redoes_all_steps() -> None:
    story = [*BEGIN, (9, "progress", {"step": 10}), *killed(10), (13, "progress", {"step": 3}), *end(20, "failed")]
    ledger = fold_ledger(told(story), BORN)
    assert ledger.seconds[Spent.REDONE] == 8
    assert ledger.steps_redone == 3


def test_nothing_is_redone_where_the_newest_step_was_restored() -> None:
    story = [*BEGIN, (9, "progress", {"step": 10}), *killed(10, step=10), *end(20)]
    assert Spent.REDONE not in fold_ledger(told(story), BORN).seconds


def test_nothing_is_redone_if_script_resumes_by_itself() -> None:
    story = [*BEGIN, (9, "progress", {"step": 10}), *killed(10), (13, "progress", {"step": 11}), *end(20)]
    assert Spent.REDONE not in fold_ledger(told(story), BORN).seconds


def test_progress_bar_per_epoch_does_not_show_redone_steps() -> None:
    bar: Story = [(at, "progress", {"step": step}) for at, step in ((3, 50), (5, 100), (6, 40), (8, 90))]
    assert Spent.REDONE not in fold_ledger(told([*BEGIN, *bar, *killed(10), *end(20)]), BORN).seconds


# -- where an attempt went on -----------------------------------------------------------------------------------------


def first_step(at: float, step: int, every: int | None = None) -> Story:
    return [(at, "first-step", {"rank": 0, "step": step, **({"every": every} if every is not None else {})})]


def logged(at: float, line: str = "Resuming training from out", **names: Any) -> Story:
    return [(at, "checkpoint", {"rank": 0, "action": "restored", "source": "log", "line": line, **names})]


def twice(first: Story, second: Story, reached: int | None = 7075) -> list[Event]:
    """Returns a run whose first attempt reaches a step and is killed after 10 s, and whose second trains from second
    12.
    """
    news: Story = [] if reached is None else [(9, "progress", {"step": reached})]
    return told([*BEGIN, *first, *news, *killed(10), *second, *end(40, "failed")])


STARTS: dict[str, tuple[Story, Story, Start, int | None]] = {
    "transformers: a bar that goes on, and a line": (
        first_step(3, 1, 1), [*logged(11.5), *first_step(13, 7001, 1)],
        Start(Origin.SCRIPT, 7000, None, "Resuming training from out"), 20,
    ),
    "a bar that goes on, without a line": (
        first_step(3, 1, 1), first_step(13, 7001, 1), Start(Origin.SCRIPT, 7000), 20,
    ),
    "transformers: logs each 500 steps": (
        first_step(3, 500, 500), first_step(13, 7500, 500), Start(Origin.SCRIPT, 7000), 20,
    ),
    "nanoGPT: logs at the beginning of each interval, from 0 on": (
        first_step(3, 0, 10), first_step(13, 7000, 10), Start(Origin.SCRIPT, 7000), 20,
    ),
    "a line that names the step, and a count that goes on a little later": (
        first_step(3, 10, 10), [*logged(11.5, step=7000), *first_step(13, 7010, 10)],
        Start(Origin.SCRIPT, 7000, None, "Resuming training from out"), 20,
    ),
    "a line that names the step, and no steps": (
        [], logged(11.5, "Continuing training from global step 7000", step=7000),
        Start(Origin.SCRIPT, 7000, None, "Continuing training from global step 7000"), 0,
    ),
    "a line that names the epoch, and no steps": (
        [], logged(11.5, "Resuming training from snapshot at Epoch 12", epoch=12),
        Start(Origin.SCRIPT, None, 12, "Resuming training from snapshot at Epoch 12"), None,
    ),
    "a line, and steps that are counted from the resume": (
        first_step(3, 1, 1), [*logged(11.5), *first_step(13, 1, 1)],
        Start(Origin.SCRIPT, None, None, "Resuming training from out"), None,
    ),
    "a line that is said at each start": (
        [*logged(1, "loaded checkpoint 'base.pth' (epoch 300)", epoch=300), *first_step(3, 1, 1)],
        [*logged(11, "loaded checkpoint 'base.pth' (epoch 300)", epoch=300), *first_step(13, 1, 1)],
        Start(Origin.BEGINNING, 0), 30,
    ),
    "from the beginning": (
        first_step(3, 1, 1), [*first_step(13, 1, 1), (20, "progress", {"step": 30})], Start(Origin.BEGINNING, 0), 30,
    ),
    "from the beginning, with a log line each 500 steps": (
        first_step(3, 500, 500), first_step(13, 500, 500), Start(Origin.BEGINNING, 0), 30,
    ),
    "from the beginning, with reports that are a time apart, and not a number of steps": (
        first_step(3, 20, 21), first_step(13, 28, 27), Start(Origin.BEGINNING, 0), 30,
    ),
    "where a first attempt began that was itself given a checkpoint": (
        first_step(3, 7001, 1), first_step(13, 7001, 1), Start(Origin.BEGINNING, 7000), 30,
    ),
    "nothing is reported": ([], [], Start(), None),
    "a restore of Windlass, and the line that follows from it": (
        first_step(3, 1, 1),
        [(11.2, "checkpoint", {"action": "restored", "name": "checkpoint-7000", "step": 7000}), *logged(11.5)],
        Start(Origin.CHECKPOINT, 7000), 0,
    ),
    "a restore of Windlass whose step its first step tells": (
        first_step(3, 1, 1), [(11.2, "checkpoint", {"action": "restored", "name": "m.pt"}), *first_step(13, 7001, 1)],
        Start(Origin.CHECKPOINT, 7000), 20,
    ),
    "a restore of Windlass, and steps that begin anew with each epoch": (
        first_step(3, 5, 6), [(11.2, "checkpoint", {"action": "restored", "name": "last.pt"}), *first_step(13, 4, 7)],
        Start(Origin.CHECKPOINT, None), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_start_of_attempt_is_determined(name: str) -> None:
    first, second, start, redone = STARTS[name]
    reached: Story = []
    if start.step is not None and redone and start.origin is not Origin.UNKNOWN:
        reached = [(30, "progress", {"step": start.step + redone})]
    events = twice(first, [*second, *reached])
    [restart] = restarts(events)
    assert (restart.start, restart.steps_redone) == (start, redone)
    ledger = fold_ledger(events, BORN)
    assert (ledger.start, ledger.steps_redone, ledger.unknown_starts) == (start, redone or 0, int(redone is None))
    is_below = start.origin is Origin.UNKNOWN or (start.step is not None and start.step < 7075)
    assert (Spent.REDONE in ledger.seconds) == is_below
    assert json.loads(json.dumps(to_json(restart)))["start"]["origin"] == start.origin


def test_an_attempt_of_which_nothing_tells_where_it_went_on_is_not_said_to_have_redone_anything_while_it_goes_on() -> (
    None
):
    events = told([*BEGIN, *first_step(3, 1, 1), (9, "progress", {"step": 7075}), *killed(10)])
    assert fold_ledger(events, BORN + 30).seconds == {Spent.STARTING: 3, Spent.TRAINING: 26, Spent.RESTARTING: 1}


def test_a_checkpoint_is_where_an_attempt_went_on_also_if_none_before_has_trained() -> None:
    restored = (14, "checkpoint", {"action": "restored", "step": 31, "name": "step-31"})
    events = told(
        [
            (0, "attempt", attempt()),
            *end(5, "stopped"),
            (10, "resume", {"reason": "asked"}),
            (11, "attempt", attempt(2)),
            (12, "phase", {"phase": "training"}),
            restored,
            *first_step(15, 32, 1),
        ]
    )
    ledger = fold_ledger(events, BORN + 20)
    assert (ledger.start, ledger.steps_redone) == (Start(Origin.CHECKPOINT, 31), 0)


def test_steps_that_begin_at_0_in_each_epoch_are_no_restart() -> None:
    """This holds within an attempt, and for the next attempt, which continues in the same epoch."""
    bar: Story = [
        (at, "progress", {"epoch": epoch, "step": step})
        for at, epoch, step in ((3, 0, 50), (5, 0, 100), (6, 1, 0), (8, 1, 90))
    ]
    again: Story = [(13, "progress", {"epoch": 1, "step": 0}), (15, "progress", {"epoch": 1, "step": 60})]
    events = told([*BEGIN, *first_step(3, 0, 10), *bar, *killed(10), *first_step(13, 0, 10), *again, *end(20)])
    [restart] = restarts(events)
    assert (restart.start, restart.steps_redone) == (Start(Origin.SCRIPT, None, 1), None)
    assert Spent.REDONE not in fold_ledger(events, BORN).seconds


def test_epochs_show_full_retraining_if_steps_do_not() -> None:
    story = [
        *BEGIN,
        (3, "progress", {"epoch": 0}),
        (8, "progress", {"epoch": 4}),
        *killed(10),
        (13, "progress", {"epoch": 0}),
        *end(20, "failed"),
    ]
    [restart] = restarts(told(story))
    assert (restart.start, restart.steps_redone) == (Start(Origin.BEGINNING), None)


def test_the_first_step_that_an_old_record_has_is_no_proof_of_a_resume() -> None:
    """The event was written up to a minute after the first step."""
    story = [
        *BEGIN,
        (3, "progress", {"step": 5}),
        (9, "progress", {"step": 100}),
        *killed(10),
        (13, "progress", {"step": 40}),
        (15, "caught-up", {"step": 100}),
        *end(20),
    ]
    [restart] = restarts(told(story))
    assert (restart.start, restart.steps_redone) == (Start(), None)
    assert fold_ledger(told(story), BORN).seconds[Spent.REDONE] == 3


def test_the_time_between_an_end_and_a_resume_is_idle_and_holds_no_node() -> None:
    story = [
        (0, "attempt", attempt(1, 2)),
        (2, "phase", {"phase": "training"}),
        *end(10, "stopped"),
        (60, "resume", {"reason": "asked"}),
        (60, "attempt", attempt(2, 2)),
        (61, "phase", {"phase": "training"}),
        *end(70),
    ]
    ledger = fold_ledger(told(story), BORN)
    assert ledger.seconds == {Spent.STARTING: 3, Spent.TRAINING: 17, Spent.IDLE: 50}
    assert ledger.node_seconds == {Spent.STARTING: 6, Spent.TRAINING: 34}
    assert ledger.wall_seconds == 70


def test_waiting_for_new_supervisor_is_idle() -> None:
    story = [
        *BEGIN,
        (5, "rank", {"rank": 0, "exit_code": 143}),
        (6, "attempt-end", {"phase": "preempted"}),
        (40, "adopted", {}),
        (41, "attempt", attempt(2)),
        *end(50),
    ]
    assert spent(story) == {"starting": 11, "training": 3, "restarting": 2, "idle": 34}


def test_waiting_for_a_node_is_idle_once_the_back_off_is_over() -> None:
    story = [
        *BEGIN,
        (5, "rank", {"rank": 0, "exit_code": -9}),
        (6, "attempt-end", {"phase": "failed", "reason": "node-loss", "wait_seconds": 2.0}),
        (20, "node-back", {"node": 1}),
        (21, "attempt", attempt(2)),
        *end(30),
    ]
    assert spent(story) == {"starting": 11, "training": 3, "restarting": 4, "idle": 12}


def test_node_that_returns_during_training_causes_no_idle_time() -> None:
    story = [*BEGIN, (5, "node-back", {"node": 1}), *end(10)]
    assert spent(story) == {"starting": 2, "training": 8}


def test_ranks_without_supervisor_are_not_idle() -> None:
    assert spent([*BEGIN, (30, "adopted", {}), *end(40)]) == {"starting": 2, "training": 38}


# -- a cluster's pods without a supervisor ----------------------------------------------------------------------------

OFF: Story = [*BEGIN, (10, "progress", {"step": 5}), (1000, "adopted", {"observed_until": 12})]
"""A supervisor that observed its pods for 12 s, and a second one that took over the run after 1000 s."""


def progressed(*times: float) -> Story:
    return [(at, "progress", {"step": round(at)}) for at in times]


def rank_ended(at: float, exit_code: int = 0, rank: int = 0) -> Story:
    return [(at, "rank", {"rank": rank, "exit_code": exit_code})]


NEXT: Story = [
    (1001, "attempt-end", {"phase": "failed", "reason": "failure"}),
    (1002, "attempt", attempt(2)),
    *end(1005),
]
UNSEEN: dict[str, tuple[Story, dict[str, float]]] = {
    "nothing is known yet": ([], {"starting": 2, "training": 10, "unobserved": 988}),
    "the log tells that they trained on, so far as it was read": (
        progressed(200, 500),
        {"starting": 2, "training": 498, "unobserved": 500},
    ),
    "they train on": (progressed(200, 1000.5), {"starting": 2, "training": 998.5}),
    "they say something for the first time after a while": (
        [*progressed(1300)],
        {"starting": 2, "training": 1298},
    ),
    "they succeeded meanwhile": (
        [*progressed(200), *rank_ended(400), *end(1001)],
        {"starting": 2, "training": 398, "idle": 601},
    ),
    "they failed meanwhile": (
        [*progressed(200), *rank_ended(400, 1), *end(1001, "failed")],
        {"starting": 2, "training": 398, "idle": 600, "stopping": 1},
    ),
    "they failed meanwhile, and another attempt follows": (
        [*progressed(200), *rank_ended(400, 1), *NEXT],
        {"starting": 5, "training": 398, "idle": 600, "restarting": 2},
    ),
    "they were lost, and the end of their log is known": (
        [(1001, "attempt-end", {"phase": "failed", "reason": "node-loss", "died_at": 300}), *NEXT[1:]],
        {"starting": 5, "training": 10, "unobserved": 288, "idle": 701, "restarting": 1},
    ),
    "they were lost, and their log is known": (
        [
            *progressed(200, 300),
            (1001, "attempt-end", {"phase": "failed", "reason": "node-loss", "died_at": 300}),
            *NEXT[1:],
        ],
        {"starting": 5, "training": 298, "idle": 701, "restarting": 1},
    ),
    "they were stopped, and never heard of": (
        [(1001, "stop", {"reason": "asked"}), *end(1002, "stopped")],
        {"starting": 2, "training": 11, "unobserved": 988, "stopping": 1},
    ),
    "they say nothing, and are seen to run": ([(1000.2, "observed", {"node": 0})], {"starting": 2, "training": 998.2}),
    "they end after the take-up": ([*rank_ended(1003), *end(1004)], {"starting": 2, "training": 1002}),
    "the second supervisor was off too": (
        [*progressed(500), (2000, "adopted", {"observed_until": 500}), *progressed(900)],
        {"starting": 2, "training": 898, "unobserved": 1100},
    ),
    "a clock that is ahead": (
        [(999, "adopted", {"observed_until": 1500})],
        {"starting": 2, "training": 10, "unobserved": 988},
    ),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_time_without_supervisor_counts_as_far_as_pods_report_it(name: str) -> None:
    more, seconds = UNSEEN[name]
    last = max(at for at, _, _ in [*OFF, *more])
    ledger = fold_ledger(told([*OFF, *more]), BORN + last)
    assert {str(spent): value for spent, value in ledger.seconds.items()} == pytest.approx(seconds)
    assert sum(ledger.seconds.values()) == pytest.approx(last)
    unpriced = {Spent.UNOBSERVED, Spent.IDLE}
    assert ledger.node_seconds == {spent: value for spent, value in ledger.seconds.items() if spent not in unpriced}


def test_training_ends_with_the_last_rank() -> None:
    story: Story = [
        (0, "attempt", attempt(1, 2)),
        BEGIN[1],
        *OFF[2:],
        *rank_ended(300),
        *rank_ended(400, rank=1),
        *end(1001),
    ]
    ledger = fold_ledger(told(story), BORN)
    assert ledger.seconds == {Spent.STARTING: 2, Spent.TRAINING: 398, Spent.IDLE: 601}
    assert ledger.node_seconds == {Spent.STARTING: 4, Spent.TRAINING: 796}


@pytest.mark.parametrize("ending", ["end", "attempt-end"])
def test_after_a_power_cut_it_is_idle_since_the_last_sign_of_life(ending: str) -> None:
    story = [
        *BEGIN,
        (30, "adopted", {}),
        (30, "rank", {"rank": 0, "exit_code": -9}),
        (30, ending, {"phase": "lost" if ending == "end" else "failed", "died_at": 12}),
    ]
    assert spent(story, now=30) == {"starting": 2, "training": 10, "idle": 18}


def test_a_lost_run_of_an_old_record_is_idle_since_the_last_event() -> None:
    story = [*BEGIN, (12, "progress", {"step": 3}), (30, "cause", {"summary": "gone"}), *end(30, "lost")]
    assert spent(story) == {"starting": 2, "training": 10, "idle": 18}


def test_nodes_are_counted_as_each_attempt_had_them() -> None:
    story = [(0, "attempt", attempt(1, 3)), (2, "phase", {"phase": "training"}), *killed(10), *end(20)]
    held = fold_ledger(told(story), BORN).node_seconds
    assert held == {Spent.STARTING: 2 * 3 + 1, Spent.TRAINING: 8 * 3 + 8, Spent.RESTARTING: 3}


def test_spans_follow_one_another_and_name_neighbours_once() -> None:
    found = spans(
        told([*BEGIN, (9, "progress", {"step": 10}), *killed(10, step=6), (15, "caught-up", {"step": 10}), *end(20)]),
        BORN,
    )
    assert [(span.begin - BORN, span.end - BORN, str(span.spent)) for span in found] == [
        (0, 2, "starting"),
        (2, 10, "training"),
        (10, 11, "restarting"),
        (11, 12, "starting"),
        (12, 15, "redone"),
        (15, 20, "training"),
    ]


def test_restarts_have_reason_duration_and_redone_steps() -> None:
    story: Story = [
        *BEGIN,
        (9, "progress", {"step": 8}),
        (10, "rank", {"rank": 0, "exit_code": -9}),
        (
            10.5,
            "attempt-end",
            {"phase": "failed", "reason": "failure", "restarts_left": 2, "wait_seconds": 1.0, "step": 10},
        ),
        (12, "attempt", attempt(2, reason="failure")),
        (12, "checkpoint", {"action": "restored", "step": 6}),
        (13, "phase", {"phase": "training"}),
        (15, "caught-up", {"step": 10}),
        *end(20, "stopped", reason="stop"),
        (30, "resume", {}),
        (30, "attempt", attempt(3, reason="resume")),
        *end(40),
    ]
    assert restarts(told(story)) == [
        Restart(2, "failure", 2.0, 1.0, 2, 10, 6, 4, Start(Origin.CHECKPOINT, 6)),
        Restart(3, "resume", 10.0, None, None, 10, None, None),
    ]
    assert json.loads(json.dumps(to_json(restarts(told(story))[0])))["steps_redone"] == 4


def test_step_below_checkpoint_is_not_the_failed_step() -> None:
    story: Story = [
        *BEGIN,
        (3, "progress", {"step": 14, "epoch": 3}),
        (4, "attempt-end", {"phase": "failed", "reason": "failure", "step": 14}),
        (5, "attempt", attempt(2)),
        (6, "checkpoint", {"action": "restored", "step": 60}),
    ]
    [restart] = restarts(told(story))
    assert (restart.reached_step, restart.restored_step) == (None, 60)


def test_restarts_of_old_record_are_listed() -> None:
    story: Story = [*BEGIN, *killed(10)[:1], (11, "attempt-end", {"phase": "failed"}), (12, "attempt", attempt(2))]
    assert restarts(told(story)) == [Restart(2, None, 2.0, None, None, None, None, None)]


def test_ledger_without_events_is_refused() -> None:
    with pytest.raises(ValueError, match="without events"):
        fold_ledger([], BORN)


# -- whatever happens -------------------------------------------------------------------------------------------------

times = st.floats(BORN - 1e6, BORN + 1e6)
lengths = st.floats(-1e3, 1e5)
steps = st.integers(-1, 60)
ends = st.sampled_from(sorted(TERMINAL)).map(str)
KINDS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "phase": st.fixed_dictionaries({"phase": st.sampled_from(["starting", "training", "checkpointing"])}),
    "attempt": st.fixed_dictionaries(
        {"number": st.integers(1, 9), "world_size": st.just(2)},
        optional={"nodes": st.sampled_from([[[0], [1]], [[0, 1]]]), "reason": st.just("failure")},
    ),
    "attempt-end": st.fixed_dictionaries(
        {"phase": st.sampled_from(["failed", "stopped"])}, optional={"died_at": times, "wait_seconds": lengths}
    ),
    "rank": st.fixed_dictionaries({"rank": st.integers(0, 2)}, optional={"exit_code": st.integers(-15, 2)}),
    "progress": st.dictionaries(st.sampled_from(["step", "loss"]), steps),
    "checkpoint": st.fixed_dictionaries(
        {"action": st.sampled_from(["saved", "restored", "refused", "failed", "skipped"])},
        optional={"step": steps, "blocked_at": times, "blocked_seconds": lengths},
    ),
    "hang": st.fixed_dictionaries(
        {"ranks": st.just([])},
        optional={"since": times, "seconds": lengths, "reason": st.sampled_from(["silence", "stop", "failure"])},
    ),
    "hang-end": st.fixed_dictionaries({}, optional={"since": times, "at": times, "seconds": lengths}),
    "caught-up": st.fixed_dictionaries({"step": steps}),
    "resume": st.fixed_dictionaries({"reason": st.just("asked")}),
    "stop": st.just({"now": False, "reason": "asked"}),
    "adopted": st.fixed_dictionaries({}, optional={"observed_until": times}),
    "node-back": st.just({"node": 1}),
    "notice": st.just({"source": "sigterm", "action": "terminate"}),
    "end": st.fixed_dictionaries({"phase": ends}, optional={"exit_code": st.integers(0, 9), "died_at": times}),
    "from-the-future": st.dictionaries(st.text(max_size=3), st.integers()),
}


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Generates events of a run in any order, with clocks set back, repeated numbers and impossible times."""
    events, seq, steady, at = [BIRTH], 1, draw(st.booleans()), BORN
    for kind in draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=40)):
        seq += draw(st.sampled_from([1, 1, 1, 1, 0, 5]))
        at = at + draw(st.floats(0, 100)) if steady else draw(times)
        events.append(Event(seq, at, kind, draw(KINDS[kind])))
    return events


@given(histories(), times)
def test_every_moment_is_in_exactly_one_phase(events: list[Event], now: float) -> None:
    for length in range(1, len(events) + 1):
        ledger = fold_ledger(events[:length], now)
        status = fold(events[:length])
        until = status.times.phase_since if status.phase.is_terminal else max(now, status.times.phase_since)
        assert all(seconds > 0 for seconds in ledger.seconds.values())
        # The sum is exact to the microsecond, because whole microseconds are added, not floats.
        assert sum(round(value * MICRO) for value in ledger.seconds.values()) == round(ledger.wall_seconds * MICRO)
        assert round(ledger.wall_seconds * MICRO) == round(until * MICRO) - round(BORN * MICRO)
        assert 0 <= ledger.goodput <= 1
        assert ledger.steps_redone >= 0
        assert all(restart.seconds >= 0 for restart in restarts(events[:length]))
        assert all(held >= 0 for held in ledger.node_seconds.values())


@given(histories(), times)
def test_spans_are_the_same_time_without_a_gap(events: list[Event], now: float) -> None:
    found, ledger = spans(events, now), fold_ledger(events, now)
    assert all(left.end == right.begin for left, right in itertools.pairwise(found))
    assert all(span.begin < span.end for span in found)
    if found:
        assert found[0].begin == BORN
        assert found[-1].end - BORN == pytest.approx(ledger.wall_seconds, abs=1e-5)
    for name, seconds in ledger.seconds.items():
        assert sum(span.end - span.begin for span in found if span.spent is name) == pytest.approx(seconds, abs=1e-5)


@given(histories(), times, st.integers(0, 40))
def test_repeated_ledger_is_equal(events: list[Event], now: float, cut: int) -> None:
    tally = Tally(events[: max(1, cut)])
    ledger_of(tally, now)
    tally.take(events)
    assert ledger_of(tally, now) == fold_ledger(events, now)


@given(histories(), times)
def test_every_ledger_is_json(events: list[Event], now: float) -> None:
    ledger = fold_ledger(events, now)
    data = json.loads(json.dumps(to_json(ledger), allow_nan=False))
    assert data["attempts"] == ledger.attempts
    assert data["seconds"] == {str(name): seconds for name, seconds in ledger.seconds.items()}


def test_every_phase_of_the_record_that_goes_on_is_one_of_the_ledger() -> None:
    assert {phase.value for phase in Phase if phase not in TERMINAL} - {"preempted"} <= set(Spent)
