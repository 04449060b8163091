"""Attempts end and restart: hangs, preemption, shutdown, time limits, lost nodes, back-off, stop requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.helpers.clock import START
from tests.statuses import cause_of
from tests.supervise.fakes import FakeAttempt, FakeNode, FakeRun

from windlass.runs.events import entry_of
from windlass.runs.ledger import restarts
from windlass.runs.phase import Phase
from windlass.runs.stop_request import StopRequest, write_stop_request
from windlass.supervise.adoption import settle
from windlass.supervise.backend import Intent, TargetUnavailable
from windlass.supervise.hang_detection import ANSWER_SECONDS
from windlass.supervise.shutdown import LAST_RESORT_SECONDS
from windlass.worker.protocol import FAILURE_GRACE_SECONDS

MakeRun = Callable[..., FakeRun]


def begun(attempt: FakeAttempt) -> None:
    for node in attempt.nodes:
        node.begin()


def end_all(attempt: FakeAttempt) -> None:
    for node in attempt.nodes:
        node.end(0)


def succeed(attempt: FakeAttempt) -> None:
    begun(attempt)
    end_all(attempt)


def first(script: Callable[[FakeAttempt], object]) -> Callable[[FakeAttempt], object]:
    """Returns a script for the first attempt; all later ones succeed."""
    return lambda attempt: script(attempt) if attempt.folder.name == "attempt-1" else succeed(attempt)


def write(node: FakeNode, text: str = "x\n") -> None:
    """Writes output of a rank, with the fake clock's time as the modification time of the log."""
    log = node.folder / f"rank-{node.ranks[0]}.log"
    with open(log, "a") as file:
        file.write(text)
    os.utime(log, (node.clock.time(), node.clock.time()))


# -- hangs ------------------------------------------------------------------------------------------------------------


def answer(node: FakeNode, seconds: float, run: FakeRun) -> None:
    """Makes the node write the stacks of its ranks when they are requested."""

    def dump() -> None:
        at = run.clock.now - START + seconds
        stacks = [{"rank": rank, "state": "S", "stack": "in train"} for rank in node.ranks]
        run.clock.at(at, lambda: node.report("hang", ranks=stacks))

    node.obeys[Intent.DUMP_STACKS] = dump


def test_a_hung_job_is_started_again_without_grace_once_its_stacks_are_there(make_run: MakeRun) -> None:
    run = make_run(nodes=2, hang_seconds=60.0, max_restarts=1, restart_on=["hang"], grace_seconds=600.0)

    def hang(attempt: FakeAttempt) -> None:
        begun(attempt)
        for node in attempt.nodes:
            answer(node, 1.0 + node.number, run)

    assert run.run(first(hang)).phase is Phase.SUCCEEDED
    assert run.ends == [("failed", "hang"), ("succeeded", None)]
    assert run.kinds("hang", "cause", "attempt-end") == ["hang", "hang", "cause", "attempt-end"]
    assert run.data("cause")[0]["summary"].startswith("hung: no rank wrote anything for 6")
    assert run.backend.attempts[0].nodes[0].intents == [Intent.DUMP_STACKS, Intent.STOP_NOW]
    assert 60 < run.clock.now - START < 60 + 2 * ANSWER_SECONDS


def test_hung_job_ends_even_if_stacks_never_arrive(make_run: MakeRun) -> None:
    run = make_run(hang_seconds=60.0, max_restarts=1, restart_on=["hang"])
    assert run.run(first(begun)).phase is Phase.SUCCEEDED
    assert run.ends == [("failed", "hang"), ("succeeded", None)]


def test_nodes_that_wait_to_begin_for_longer_than_a_hang_are_not_hung(make_run: MakeRun) -> None:
    run = make_run(nodes=2, hang_seconds=60.0, max_restarts=1, restart_on=["hang"])

    def wait_in_a_queue(attempt: FakeAttempt) -> None:
        attempt.nodes[0].begin()
        run.clock.at(300, attempt.nodes[1].begin)
        run.clock.at(350, lambda: end_all(attempt))

    assert run.run(wait_in_a_queue).phase is Phase.SUCCEEDED
    assert run.ends == [("succeeded", None)]
    assert run.kinds("hang", "hang-end") == []


@pytest.mark.parametrize("policy", [{"max_restarts": 0}, {"max_restarts": 3, "restart_on": ["failure"]}])
def test_a_silence_that_ends_is_recorded_and_is_no_reason_to_restart(make_run: MakeRun, policy: dict[str, int]) -> None:
    run = make_run(hang_seconds=60.0, **policy)
    run.clock.at(150, lambda: write(run.node))
    run.clock.at(160, lambda: run.node.end(0))
    assert run.run(begun).phase is Phase.SUCCEEDED
    assert len(run.status.attempts) == 1
    [end] = run.data("hang-end")
    assert end["seconds"] == pytest.approx(150, abs=1)
    assert end["at"] - end["since"] == pytest.approx(end["seconds"], abs=0.01)


def test_a_silence_that_ends_while_stacks_are_awaited_is_no_hang(make_run: MakeRun) -> None:
    run = make_run(hang_seconds=60.0, max_restarts=1, restart_on=["hang"])

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        answer(attempt.nodes[0], 1.0, run)

    for second in range(50, 200, 50):
        run.clock.at(second, lambda: write(run.node))
    run.clock.at(205, lambda: run.node.end(0))
    assert run.run(script).phase is Phase.SUCCEEDED
    assert run.ends == [("succeeded", None)]


def end_after_outage(run: FakeRun, at: float) -> None:
    """Lets the ranks write again, and the run succeed some seconds later."""
    run.clock.at(at, lambda: write(run.node))
    run.clock.at(at + 5, lambda: run.node.end(0))


HANG_RESTARTS = {"hang_seconds": 60.0, "max_restarts": 1, "restart_on": ["hang"]}


def test_an_outage_longer_than_a_hang_does_not_end_a_run_whose_output_cannot_be_read(make_run: MakeRun) -> None:
    run = make_run(**HANG_RESTARTS, outlives=True)
    run.clock.at(10, lambda: setattr(run.backend, "down", TargetUnavailable("LoginFailed", "the token has expired")))
    run.clock.at(400, lambda: setattr(run.backend, "down", None))
    end_after_outage(run, 440)
    assert run.run(begun).phase is Phase.SUCCEEDED
    assert run.ends == [("succeeded", None)]
    assert run.kinds("hang", "hang-end", "shutdown") == []
    assert run.node.intents == []


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_neither_a_closed_lid_nor_a_clock_that_is_set_counts_as_silence(make_run: MakeRun, seconds: float) -> None:
    run = make_run(**HANG_RESTARTS)
    run.clock.at(29, lambda: write(run.node))
    run.clock.at(30, lambda: setattr(run.clock, "jumped", seconds))
    end_after_outage(run, 80)
    assert run.run(begun).phase is Phase.SUCCEEDED
    assert run.ends == [("succeeded", None)]
    assert run.kinds("hang", "hang-end", "shutdown") == []


def test_ranks_that_stay_silent_after_an_outage_are_hung_since_their_last_output(make_run: MakeRun) -> None:
    run = make_run(**HANG_RESTARTS)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        answer(attempt.nodes[0], 1.0, run)

    run.clock.at(20, lambda: write(run.node))
    run.clock.at(30, lambda: setattr(run.backend, "down", TargetUnavailable("ClusterUnreachable", "no route")))
    run.clock.at(200, lambda: setattr(run.backend, "down", None))
    assert run.run(first(script)).phase is Phase.SUCCEEDED
    assert run.ends == [("failed", "hang"), ("succeeded", None)]
    [hang] = run.events("hang")
    assert 260 < hang.time - START < 270
    assert hang.data["since"] - START == pytest.approx(20, abs=1)


def test_an_outage_while_stacks_are_awaited_defers_the_end_until_ranks_are_silent_again(make_run: MakeRun) -> None:
    run = make_run(**HANG_RESTARTS)
    run.clock.at(61, lambda: setattr(run.backend, "down", TargetUnavailable("ClusterUnreachable", "no route")))
    run.clock.at(200, lambda: setattr(run.backend, "down", None))
    assert run.run(first(begun)).phase is Phase.SUCCEEDED
    assert run.ends == [("failed", "hang"), ("succeeded", None)]
    times = [at for at, intent in run.backend.attempts[0].nodes[0].sent if intent is Intent.DUMP_STACKS]
    assert times == [pytest.approx(60, abs=1), pytest.approx(260, abs=1)]


# -- shutdown ---------------------------------------------------------------------------------------------------------


def test_a_failure_ends_the_other_nodes_with_a_short_grace_and_kills_what_is_left(make_run: MakeRun) -> None:
    run = make_run(nodes=3)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        del attempt.nodes[1].obeys[Intent.STOP]
        attempt.nodes[2].obeys = {Intent.KILL: attempt.nodes[2].die}
        attempt.nodes[0].end(3, tail="ValueError: loss is nan")

    assert run.run(script).phase is Phase.FAILED
    _, slow, deaf = run.backend.attempts[0].nodes
    assert slow.intents == [Intent.STOP, Intent.STOP_NOW]
    assert slow.sent[1][0] - slow.sent[0][0] == pytest.approx(FAILURE_GRACE_SECONDS, abs=0.1)
    assert deaf.intents == [Intent.STOP, Intent.STOP_NOW, Intent.KILL]
    killed_after = deaf.sent[2][0] - deaf.sent[0][0]
    assert killed_after == pytest.approx(FAILURE_GRACE_SECONDS + LAST_RESORT_SECONDS, abs=0.6)
    assert (run.status.exit_code, cause_of(run.status).rank) == (3, 0)
    assert run.data("lost-node") == [], "we killed it"


def test_after_a_failure_a_node_with_ranks_that_save_has_the_grace_period_as_long_as_they_do(make_run: MakeRun) -> None:
    run = make_run(nodes=3, grace_seconds=60.0)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        for node in attempt.nodes[1:]:
            del node.obeys[Intent.STOP]
            run.clock.at(2, lambda node=node: node.report("at-work", ranks=[node.ranks[0]]))  # type: ignore[misc]
        attempt.nodes[2].obeys = {Intent.KILL: attempt.nodes[2].die}
        run.clock.at(20, lambda: attempt.nodes[1].report("at-work", ranks=[]))
        attempt.nodes[0].end(3, tail="ValueError: loss is nan")

    assert run.run(script).phase is Phase.FAILED
    _, saved, saves = run.backend.attempts[0].nodes
    assert saved.intents == [Intent.STOP, Intent.STOP_NOW]
    assert 19 < saved.sent[1][0] < 21, "its ranks that save have exited, and the others wait"
    assert (saves.intents[0], saves.intents[-1]) == (Intent.STOP, Intent.KILL)
    assert saves.sent[1][0] - saves.sent[0][0] == pytest.approx(60 + LAST_RESORT_SECONDS, abs=0.6)
    assert run.data("lost-node") == [], "we killed it"


def test_a_node_that_is_lost_while_its_ranks_save_was_not_killed_by_us(make_run: MakeRun) -> None:
    run = make_run(nodes=2, grace_seconds=60.0)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        node = attempt.nodes[1]
        del node.obeys[Intent.STOP]
        run.clock.at(2, lambda: node.report("at-work", ranks=[1]))
        run.clock.at(30, node.die)
        attempt.nodes[0].end(3, tail="ValueError: loss is nan")

    run.run(script)
    assert [lost["node"] for lost in run.data("lost-node")] == [1]


def test_a_stop_request_gives_the_grace_period_to_the_nodes_and_kills_those_that_do_not_end(run: FakeRun) -> None:
    run.clock.at(2, lambda: write_stop_request(run.dir, StopRequest()))

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.nodes[0].obeys = {Intent.KILL: attempt.nodes[0].die}

    assert run.run(script).phase is Phase.STOPPED
    [node] = run.backend.attempts[0].nodes
    assert node.intents == [Intent.STOP, Intent.KILL]
    assert node.sent[1][0] - node.sent[0][0] == pytest.approx(10 + LAST_RESORT_SECONDS, abs=0.6)


def test_stop_now_leaves_out_the_grace_even_of_a_stop_under_way(run: FakeRun) -> None:
    run.clock.at(1, lambda: write_stop_request(run.dir, StopRequest()))
    run.clock.at(2, lambda: write_stop_request(run.dir, StopRequest(now=True)))

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        del attempt.nodes[0].obeys[Intent.STOP]

    assert run.run(script).phase is Phase.STOPPED
    assert run.backend.attempts[0].nodes[0].intents == [Intent.STOP, Intent.STOP_NOW]
    assert run.clock.now - START < 3


@pytest.mark.parametrize("reason", ["stop", "timeout"])
def test_a_silent_job_reports_its_stacks_before_it_ends(make_run: MakeRun, reason: str) -> None:
    run = make_run(timeout_seconds=None if reason == "stop" else 100.0)
    if reason == "stop":
        run.clock.at(100, lambda: write_stop_request(run.dir, StopRequest()))
    run.run(begun)
    assert run.backend.attempts[0].nodes[0].intents == [Intent.DUMP_STACKS, Intent.STOP]


def test_a_job_whose_output_is_known_late_is_not_silent(make_run: MakeRun) -> None:
    """Pods report every 5 s how much their ranks have printed."""
    run = make_run(timeout_seconds=4.0)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.output_lag_seconds = 5.0

    run.run(script)
    assert run.backend.attempts[0].nodes[0].intents == [Intent.STOP]


def test_the_time_limit_ends_the_run_and_is_no_reason_to_restart(make_run: MakeRun) -> None:
    run = make_run(timeout_seconds=100.0, max_restarts=3)
    run.run(begun)
    assert (run.status.phase, run.status.exit_code, len(run.status.attempts)) == (Phase.FAILED, 124, 1)
    assert "timeout of 100 s" in cause_of(run.status).summary
    assert run.clock.now - START == pytest.approx(100, abs=1)


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_time_limit_does_not_depend_on_a_clock_that_is_set(make_run: MakeRun, seconds: float) -> None:
    run = make_run(timeout_seconds=100.0)
    run.clock.at(10, lambda: setattr(run.clock, "jumped", seconds))
    run.backend.script = begun
    run.run()
    assert run.ends == [("failed", "timeout")]
    assert run.clock.now - START == pytest.approx(100, abs=1)


def test_a_stop_overrules_a_failure_under_way(make_run: MakeRun) -> None:
    run = make_run(nodes=2, max_restarts=5)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        del attempt.nodes[1].obeys[Intent.STOP]
        attempt.nodes[0].end(1)
        run.clock.at(1, lambda: write_stop_request(run.dir, StopRequest()))

    assert run.run(script).phase is Phase.STOPPED
    assert len(run.status.attempts) == 1


# -- machines that go down --------------------------------------------------------------------------------------------


def test_a_node_whose_machine_goes_down_is_a_preemption_that_all_nodes_get(make_run: MakeRun) -> None:
    run = make_run(nodes=2, max_restarts=1, restart_on=["preemption"])

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.nodes[1].report("notice", source="sigterm", action="terminate")
        attempt.nodes[0].obeys[Intent.STOP] = lambda: attempt.nodes[0].end(0)
        attempt.nodes[1].obeys[Intent.STOP] = lambda: attempt.nodes[1].end(0)

    assert run.run(first(script)).phase is Phase.SUCCEEDED
    assert run.ends == [("preempted", "preemption"), ("succeeded", None)]
    assert [(one["source"], one["action"]) for one in run.data("notice")] == [("sigterm", "terminate")]


def test_a_preempted_run_that_may_not_restart_is_stopped_and_nothing_failed(run: FakeRun) -> None:
    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.nodes[0].report("notice", source="sigterm", action="terminate")
        attempt.nodes[0].obeys[Intent.STOP] = lambda: attempt.nodes[0].end(0)

    status = run.run(script)
    assert (status.phase, status.cause, run.ends) == (Phase.STOPPED, None, [("preempted", "preemption")])


@pytest.mark.parametrize("has_notice", [True, False])
def test_a_planned_eviction_is_a_preemption_that_uses_up_no_restart(make_run: MakeRun, has_notice: bool) -> None:
    run = make_run(nodes=2, max_restarts=1, restart_on=["preemption"])

    def evicted(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.evicted = frozenset({1})
        if has_notice:
            attempt.nodes[1].report("notice", source="sigterm", action="terminate")
        else:
            attempt.nodes[1].die()

    def script(attempt: FakeAttempt) -> None:
        (evicted if len(run.backend.attempts) <= 3 else succeed)(attempt)

    assert run.run(script).phase is Phase.SUCCEEDED
    assert run.ends == [*[("preempted", "preemption")] * 3, ("succeeded", None)]
    assert [one["restarts_left"] for one in run.data("attempt-end")] == [1, 1, 1]


def test_a_run_that_its_target_has_taken_back_for_good_is_stopped_whatever_restarts_are_left(make_run: MakeRun) -> None:
    run = make_run(max_restarts=3, restart_on=["preemption", "failure"])

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.ended_by_target = "stop"
        attempt.nodes[0].end(-15, ended_by_us=True)

    status = run.run(script)
    assert (status.phase, status.cause, run.ends) == (Phase.STOPPED, None, [("stopped", "stop")])


@pytest.mark.parametrize(("restarts", "attempts"), [(0, 1), (1, 2)])
def test_a_rebalance_recommendation_ends_only_a_run_that_may_start_again(
    make_run: MakeRun, restarts: int, attempts: int
) -> None:
    run = make_run(max_restarts=restarts, restart_on=["preemption"])

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.nodes[0].report("notice", source="imds", action="rebalance", time="2026-09-18T08:10:00Z")
        run.clock.at(20, lambda: attempt.nodes[0].end(0))
        attempt.nodes[0].obeys[Intent.STOP] = lambda: attempt.nodes[0].end(0)

    assert run.run(first(script)).phase is Phase.SUCCEEDED
    assert len(run.status.attempts) == attempts
    assert run.kinds("notice") == ["notice"]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_supervisor_whose_machine_goes_down_ends_the_attempt_and_leaves_a_run_that_may_restart(
    make_run: MakeRun, restarts: int
) -> None:
    run = make_run(max_restarts=restarts, restart_on=["preemption"])
    supervisor = run.supervisor()
    run.backend.script = first(begun)
    run.clock.at(5, lambda: setattr(supervisor, "terminated", True))
    supervisor.run()
    assert run.ends == [("preempted", "preemption")]
    assert run.status.phase is (Phase.RESTARTING if restarts else Phase.STOPPED)
    assert supervisor.detached is bool(restarts)
    if restarts:
        assert run.run().phase is Phase.SUCCEEDED, "the next supervisor goes on"


# -- lost nodes -------------------------------------------------------------------------------------------------------


def test_a_node_that_dies_is_lost_and_the_run_starts_again(make_run: MakeRun) -> None:
    run = make_run(nodes=2, max_restarts=1, restart_on=["node-loss"])

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.nodes[1].words = "Node not ready"
        run.clock.at(5, attempt.nodes[1].die)

    assert run.run(first(script)).phase is Phase.SUCCEEDED
    assert run.ends == [("failed", "node-loss"), ("succeeded", None)]
    assert [(one["node"], one["why"]) for one in run.data("lost-node")] == [(1, "Node not ready")]
    assert run.data("cause")[0]["node_lost"] == 1


def test_an_elastic_run_goes_on_with_fewer_nodes_and_grows_again_after_a_checkpoint(make_run: MakeRun) -> None:
    run = make_run(nodes=3, min_nodes=2, node_back_seconds=30.0, max_restarts=0)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        number = len(run.backend.attempts)
        now = run.clock.now - START
        if number == 1:
            run.clock.at(now + 5, attempt.nodes[2].die)
        elif number == 2:
            run.clock.at(now + 60, lambda: attempt.nodes[0].report("checkpoint", action="saved", step=7, name="step-7"))
        else:
            run.clock.at(now + 5, lambda: end_all(attempt))
        for node in attempt.nodes if number == 2 else ():
            node.obeys[Intent.STOP] = lambda node=node: node.end(0)  # type: ignore[misc]

    assert run.run(script).phase is Phase.SUCCEEDED
    assert [attempt.members for attempt in run.status.attempts] == [(0, 1, 2), (0, 1), (0, 1, 2)]
    assert run.ends == [("failed", "node-loss"), ("stopped", "resize"), ("succeeded", None)]
    assert [rank for node in run.backend.attempts[1].nodes for rank in node.ranks] == [0, 1]


@pytest.mark.parametrize(
    ("num_waiting", "first", "members"),
    [
        (2, 1, [(0, 1, 2, 3), (0, 1, 2, 3), (0, 1), (0, 1, 2, 3)]),
        (3, 1, [(0, 1, 2, 3), (0, 1, 2, 3)]),
        (2, 0, [(0, 1, 2, 3)]),
    ],
    ids=["shrinks", "not below min", "not in the first attempt"],
)
def test_an_elastic_run_goes_on_without_the_nodes_that_find_no_capacity(
    make_run: MakeRun, num_waiting: int, first: int, members: list[tuple[int, ...]]
) -> None:
    """This includes nodes that were evicted, and therefore not lost."""
    run = make_run(nodes=4, min_nodes=2, node_back_seconds=10.0, max_restarts=1, restart_on=["preemption"])

    def script(attempt: FakeAttempt) -> None:
        number, now = len(run.backend.attempts), run.clock.now - START
        waiting = range(4 - num_waiting, 4) if number == first + 1 else ()
        for node in attempt.nodes:
            if node.number not in waiting:
                node.begin()
        if number == 1 and first:
            attempt.nodes[3].report("notice", source="sigterm", action="terminate")
        elif waiting:
            for place in waiting:
                attempt.nodes[place].words = "pod r-2-3: Unschedulable: 0/4 nodes are available"
            attempt.waiting = {place: run.clock.time() + place for place in waiting}  # each a little later
            run.clock.at(now + 120, lambda: end_all(attempt))
        elif number == 3:
            attempt.nodes[0].report("checkpoint", action="saved", step=7, name="step-7")
        else:
            end_all(attempt)

    assert run.run(script).phase is Phase.SUCCEEDED
    assert [attempt.members for attempt in run.status.attempts] == members
    if len(members) == 4:
        why = "pod r-2-3: Unschedulable: 0/4 nodes are available"
        assert run.data("lost-node") == [{"node": node, "why": why} for node in (2, 3)]
        assert [reason for _, reason in run.ends] == ["preemption", "resize", "resize", None]
        assert run.data("cause") == []
        begun_at = [event.time for event in run.events("attempt")]
        assert 30 <= begun_at[2] - begun_at[1] < 60


def test_a_node_has_time_to_report_that_its_ranks_save_where_signals_are_slow(make_run: MakeRun) -> None:
    run = make_run(nodes=2)

    def script(attempt: FakeAttempt) -> None:
        attempt.report_lag_seconds = 3.0
        begun(attempt)
        del attempt.nodes[1].obeys[Intent.STOP]
        attempt.nodes[0].end(3, tail="ValueError: loss is nan")

    assert run.run(script).phase is Phase.FAILED
    stopped, killed = run.backend.attempts[0].nodes[1].sent
    assert killed[0] - stopped[0] == pytest.approx(FAILURE_GRACE_SECONDS + 3.0, abs=0.1)


def test_the_smaller_side_of_a_cut_is_killed_at_once_and_the_others_may_save(make_run: MakeRun) -> None:
    run = make_run(nodes=3, min_nodes=2, node_back_seconds=1e6)

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        for node in attempt.nodes[:2]:
            node.report("unreachable", nodes=[2])
            del node.obeys[Intent.STOP]

    assert run.run(first(script)).phase is Phase.SUCCEEDED
    kept, _, cut = run.backend.attempts[0].nodes
    assert cut.intents[0] is Intent.KILL
    assert kept.intents == [Intent.STOP, Intent.STOP_NOW], "in a collective they would wait for half an hour"
    assert kept.sent[1][0] - kept.sent[0][0] == pytest.approx(FAILURE_GRACE_SECONDS, abs=0.1)
    assert run.data("lost-node") == [{"node": 2, "why": "node 2 cannot be reached by the others"}]
    assert run.status.attempts[1].members == (0, 1)
    [cause] = run.data("cause")
    assert (cause["rank"], cause["summary"]) == (2, "node 2 cannot be reached by the others"), (
        "nobody else has killed it"
    )


# -- back-off and the number of restarts -----------------------------------------------------------------------------


def fail(attempt: FakeAttempt) -> None:
    begun(attempt)
    attempt.nodes[0].end(7)


def test_restarts_wait_longer_each_time_and_then_end(make_run: MakeRun) -> None:
    run = make_run(max_restarts=4)
    status = run.run(fail)
    assert (status.phase, status.exit_code, len(status.attempts)) == (Phase.FAILED, 7, 5)
    ends = run.data("attempt-end")
    assert [(one["restarts_left"], one["wait_seconds"]) for one in ends] == [(3, 0), (2, 1), (1, 2), (0, 4)]
    assert len(run.clock.waits) < 30, "a supervisor sleeps in its back-off"
    started = [attempt.started_at for attempt in status.attempts]
    assert started[4] - started[0] == pytest.approx(0 + 1 + 2 + 4, abs=2.5)


def test_the_next_supervisor_waits_for_the_rest_of_a_back_off(make_run: MakeRun) -> None:
    run = make_run(max_restarts=4)
    run.begin()
    for wait in (0.0, 30.0):
        end = {"phase": "failed", "reason": "failure", "restarts_left": 3, "wait_seconds": wait}
        run.writer.append(entry_of("attempt-end", end), at=START)
        if not wait:
            data = {"number": 2, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "failure"}
            run.writer.append(entry_of("attempt", data), at=START)
    run.clock.now = START + 10
    assert run.run(succeed).phase is Phase.SUCCEEDED
    assert run.status.attempts[2].started_at == pytest.approx(START + 30, abs=0.6)


def test_a_stop_request_ends_a_back_off(make_run: MakeRun) -> None:
    run = make_run(max_restarts=9)
    run.clock.at(20, lambda: write_stop_request(run.dir, StopRequest()))
    assert run.run(fail).phase is Phase.STOPPED
    assert run.clock.now - START == pytest.approx(20, abs=0.6)


# -- adoption ---------------------------------------------------------------------------------------------------------


def dead(died_at: float) -> Callable[[FakeAttempt], object]:
    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.died_at = died_at
        for node in attempt.nodes:
            node.die()

    return script


def test_after_a_power_cut_the_run_starts_again_and_the_time_since_counts_as_idle(make_run: MakeRun) -> None:
    run = make_run(nodes=2, max_restarts=1, restart_on=["node-loss"])
    run.begin()
    run.clock.now = START + 3600
    assert not settle(run.supervisor()), "it is to be started again"
    run.run(first(dead(START + 50)))
    assert run.ends == [("failed", "node-loss"), ("succeeded", None)]
    assert run.status.attempts[0].ended_at == pytest.approx(START + 50)
    assert run.status.times.phases[Phase.IDLE] > 3500


def test_without_restarts_a_power_cut_is_the_end_and_a_command_settles_it(make_run: MakeRun) -> None:
    run = make_run(nodes=2)
    run.begin()
    run.backend.script = dead(START + 50)
    assert settle(run.supervisor())
    assert (run.status.phase, run.ends) == (Phase.LOST, [("lost", "node-loss")])
    assert run.backend.cleaned_up == [Phase.LOST]


def test_a_run_whose_nodes_live_is_left_to_a_supervisor(run: FakeRun) -> None:
    run.begin()
    run.backend.script = begun
    assert not settle(run.supervisor())


def test_events_of_previous_supervisor_are_not_recorded_again(make_run: MakeRun) -> None:
    run = make_run(nodes=2)
    supervisor = run.supervisor()
    run.clock.at(10, lambda: setattr(run.backend, "lost_to_another", True))

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.nodes[0].report("checkpoint", action="saved", step=3, name="step-3")

    run.backend.script = script
    supervisor.run()
    recorded = run.kinds()
    run.backend.lost_to_another = False
    run.clock.now = START
    run.clock.at(30, lambda: end_all(run.backend.attempts[-1]))
    assert run.run().phase is Phase.SUCCEEDED
    assert run.kinds()[len(recorded) :] == ["rank", "rank", "end"]


# -- adoption of an attempt that is being ended -----------------------------------------------------------------------


def handed_over(run: FakeRun, reason: str, *more: tuple[str, dict[str, Any]]) -> None:
    """Records that another supervisor began to end the attempt, and was killed."""
    run.begin()
    for kind, data in (*more, ("shutdown", {"reason": reason})):
        run.writer.append(entry_of(kind, data), at=START)


def terminated(node: FakeNode) -> None:
    """Makes the node report the previous supervisor's SIGTERM as if its machine were shutting down."""
    node.report("notice", source="sigterm", action="terminate", time="2026-01-01T00:00:00Z")
    node.end(-15, ended_by_us=True)


def test_a_node_that_was_lost_with_its_supervisor_gave_its_last_sign_of_life_to_that_one(make_run: MakeRun) -> None:
    run = make_run(nodes=2, outlives=True, max_restarts=1, restart_on=["node-loss"])
    run.begin()
    run.writer.append(entry_of("progress", {"step": 3}), at=START + 5)
    run.clock.now = START + 60
    run.writer.append(entry_of("adopted", {"observed_until": START + 5}), at=START + 60)

    def script(attempt: FakeAttempt) -> None:
        attempt.nodes[0].begin()
        attempt.nodes[1].die()  # on an unresponsive machine, whose events cannot be read again
        attempt.nodes[1].begun = True

    assert run.run(first(script)).phase is Phase.SUCCEEDED
    assert [one["since"] for one in run.data("lost-node")] == [START + 5]
    [restart] = restarts(run.store.events("r-1"))
    assert restart.seconds == pytest.approx(55, abs=10)


def test_the_signals_of_a_supervisor_that_was_killed_are_no_preemption(make_run: MakeRun) -> None:
    run = make_run(nodes=2, max_restarts=1, restart_on=["preemption"])
    handed_over(run, "failure")

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        failed, peer = attempt.nodes
        failed.obeys = {}
        terminated(peer)
        run.clock.at(2, lambda: failed.end(3, tail="ValueError: loss is nan"))  # the events arrive later

    assert run.run(script).phase is Phase.FAILED
    assert (run.ends, run.kinds("notice")) == ([("failed", "failure")], [])
    assert run.status.cause is not None
    assert (run.status.cause.rank, run.status.cause.victims) == (0, (1,))
    assert len(run.kinds("shutdown")) == 1


def test_a_hang_that_a_supervisor_had_begun_to_end_is_one_for_the_next(make_run: MakeRun) -> None:
    run = make_run(nodes=2, max_restarts=1, restart_on=["hang"], hang_seconds=60.0)
    seen = {"node": 0, "seconds": 61.0, "ranks": [{"rank": 0, "state": "S", "stack": "in train"}]}
    handed_over(run, "hang", ("hang", seen))

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        attempt.nodes[0].end(-9, ended_by_us=True)  # STOP_NOW is not a preemption notice

    run.run(first(script))
    assert run.ends == [("failed", "hang"), ("succeeded", None)]
    assert run.backend.attempts[0].nodes[1].intents == [Intent.STOP_NOW]
    [cause] = run.data("cause")
    assert cause["summary"] == "hung: no rank wrote anything for 61 s"


def test_a_shutdown_that_reached_no_node_ends_nothing(run: FakeRun) -> None:
    """The supervisor was killed before it signalled, and the ranks ended by themselves."""
    handed_over(run, "preemption")
    assert run.run(succeed).phase is Phase.SUCCEEDED
    assert run.node.intents == []


def test_a_power_cut_in_the_middle_of_a_shutdown_is_the_loss_of_the_nodes(make_run: MakeRun) -> None:
    run = make_run(nodes=2, max_restarts=1, restart_on=["node-loss"])
    handed_over(run, "preemption")
    run.clock.now = START + 3600
    run.run(first(dead(START + 50)))
    assert run.ends == [("failed", "node-loss"), ("succeeded", None)]
    assert run.status.attempts[0].ended_at == pytest.approx(START + 50)


def test_a_shutdown_is_recorded_before_its_signals(run: FakeRun) -> None:
    recorded: list[list[str]] = []

    def script(attempt: FakeAttempt) -> None:
        begun(attempt)
        node = attempt.nodes[0]

        def obey() -> None:
            recorded.append(run.kinds("shutdown"))
            node.end(0)

        node.obeys = {Intent.STOP: obey}

    run.clock.at(2, lambda: write_stop_request(run.dir, StopRequest()))
    run.run(script)
    assert (recorded, run.data("shutdown")) == ([["shutdown"]], [{"reason": "stop"}])
