"""The attempt monitor decides which node deaths are losses, which failure was first, and whether ranks ever met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.supervise.fakes import FakeAttempt, FakeNode, FakeRun
from tests.supervise.test_one_cause import PEER_GONE

from windlass.runs.events import RankChanged, RootCause
from windlass.runs.node_events import StageReached
from windlass.runs.phase import Phase
from windlass.supervise.backend import Intent
from windlass.supervise.monitor import AttemptMonitor
from windlass.worker.protocol import HostReport, OutputBegan, RankFailure
from windlass.worker.root_cause import failed_by_itself, first_cause


@pytest.fixture
def monitor(make_run: Callable[..., FakeRun]) -> AttemptMonitor:
    """Monitors three nodes whose workers do not handle signals yet, so that a signal ends them before any report."""
    return monitored(make_run(nodes=3, max_restarts=3, restart_on=["node-loss"]))


def monitored(run: FakeRun, *, has_process_group: bool = False) -> AttemptMonitor:
    run.begin()
    run.backend.script = unprepared
    state = replace(run.supervisor().run_state, has_process_group=has_process_group)
    return AttemptMonitor(run.backend.adopt(run.dir / "attempt-1", 1, (0, 1, 2), run.clock), state)


def unprepared(attempt: FakeAttempt) -> None:
    for node in attempt.nodes:
        node.obeys = dict.fromkeys(Intent, lambda node=node: None if node.begun else node.die())  # type: ignore[misc]


def nodes_of(monitor: AttemptMonitor) -> tuple[FakeNode, ...]:
    assert isinstance(monitor.attempt, FakeAttempt)
    return monitor.attempt.nodes


def events(monitor: AttemptMonitor, kind: str) -> list[dict[str, object]]:
    return [dict(event.data) for event in monitor.hangs._record.writer.events() if event.kind == kind]


def fail(node: FakeNode) -> None:
    node.begin()
    node.report("failing", rank=node.number, waited=False)


@pytest.mark.parametrize("failed", [0, 2])
def test_a_node_ended_before_it_started_is_neither_lost_nor_a_victim(monitor: AttemptMonitor, failed: int) -> None:
    nodes = nodes_of(monitor)
    fail(nodes[failed])
    monitor.read_updates()
    nodes[failed].end(1, tail="NameError: x")
    monitor.read_updates()
    assert monitor.attempt.over
    others = [node.number for node in nodes if node.number != failed]
    assert events(monitor, "lost-node") == []
    assert events(monitor, "not-started") == [
        {"node": number, "why": f"ended because node {failed} failed"} for number in others
    ]
    cause = first_cause(monitor.attempt.failures())
    assert cause is not None
    assert (cause.rank, cause.victims) == (failed, ())


def test_an_attempt_trains_once_a_rank_prints_where_one_node_reports_the_phase_of_all(
    make_run: Callable[..., FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SageMaker, ranks of the other hosts may print nothing."""
    monkeypatch.setattr(FakeAttempt, "num_staged", 1)
    nodes = nodes_of(monitor := monitored(run := make_run(nodes=3)))
    found = []
    for event in (StageReached(run.clock.time(), "starting"), OutputBegan(run.clock.time())):
        nodes[0].events.append(event)
        monitor.read_updates()
        found.append(run.status.phase)
    assert found == [Phase.STARTING, Phase.TRAINING]


def test_nodes_that_ended_because_the_worker_of_another_failed_are_no_cause(monitor: AttemptMonitor) -> None:
    *others, failed = nodes_of(monitor)
    failed.report("worker-failed", message="the code is damaged")
    for node in (*others, failed):
        node.die()
    monitor.read_updates()
    assert [event["node"] for event in events(monitor, "lost-node")] == [2]
    assert [event["node"] for event in events(monitor, "not-started")] == [0, 1]
    cause = first_cause(monitor.attempt.failures())
    assert cause is not None
    assert cause.rank == 2


def test_adopting_supervisor_knows_which_nodes_were_ended(monitor: AttemptMonitor) -> None:
    nodes = nodes_of(monitor)
    for node in nodes[:2]:
        node.die()
    fail(nodes[2])
    monitor.read_updates()
    assert [event["node"] for event in events(monitor, "not-started")] == [0, 1]
    assert events(monitor, "lost-node") == []


def test_a_node_that_the_supervisor_before_has_seen_start_is_lost_where_its_events_are_gone(
    monitor: AttemptMonitor,
) -> None:
    nodes = nodes_of(monitor)
    monitor.hangs._record.note(RankChanged(1, pid=7))
    nodes[1].die()
    fail(nodes[0])
    monitor.read_updates()
    monitor.read_updates()
    assert [event["node"] for event in events(monitor, "lost-node")] == [1]
    assert [event["node"] for event in events(monitor, "not-started")] == [2]


def test_a_node_that_dies_by_itself_before_it_starts_is_lost(monitor: AttemptMonitor) -> None:
    nodes_of(monitor)[1].die()
    monitor.read_updates()
    monitor.read_updates()
    assert [event["node"] for event in events(monitor, "lost-node")] == [1]
    assert events(monitor, "not-started") == [
        {"node": number, "why": "ended because node 1 failed"} for number in (0, 2)
    ]


def test_a_rank_that_failed_is_the_cause_though_its_node_is_killed_before_it_reports_more(
    monitor: AttemptMonitor,
) -> None:
    """On a busy machine, the launcher of a failed rank may not exit within the time that all nodes have."""
    nodes = nodes_of(monitor)
    for node in nodes:
        node.begin()
    fail(nodes[2])
    monitor.read_updates()
    for rank, code in ((2, 5), (0, -15), (1, -15)):
        monitor.hangs._record.note(RankChanged(rank, exit_code=code))
    for node in nodes:
        node.die()
    monitor.read_updates()
    cause = first_cause(monitor.attempt.failures())
    assert cause is not None
    assert (cause.rank, cause.exit_code, cause.victims) == (2, 5, (0, 1))
    assert cause.summary == "exit code 5; no output"


def test_an_attempt_that_its_target_ended_before_it_started_a_rank_blames_none(monitor: AttemptMonitor) -> None:
    for node in nodes_of(monitor):
        node.die()
    monitor.attempt.why_ended = "CapacityError: there are no instances"
    monitor.read_updates()
    found, _ = monitor.judge(RootCause("of the supervisor"))
    assert found.cause is not None
    assert (found.cause.summary, found.cause.rank, found.cause.victims) == (monitor.attempt.why_ended, None, ())
    assert (found.reason, found.cause.signal) == ("node-loss", None)


def test_an_attempt_that_its_target_failed_after_its_ranks_has_not_succeeded(monitor: AttemptMonitor) -> None:
    """SageMaker may fail to upload the model."""
    for node in nodes_of(monitor):
        node.begin()
    monitor.read_updates()
    for rank in range(3):
        monitor.hangs._record.note(RankChanged(rank, exit_code=0))
    for node in nodes_of(monitor):
        node.die()
    monitor.attempt.why_ended = "ClientError: Artifact upload failed: access denied"
    monitor.attempt.has_failed_after_ranks = True
    monitor.read_updates()
    found, _ = monitor.judge(RootCause("of the supervisor"))
    assert found.cause is not None
    assert (found.reason, found.cause.summary) == ("node-loss", monitor.attempt.why_ended)


def test_a_node_that_is_lost_is_the_cause_though_ranks_that_waited_for_it_are_reported_first(
    monitor: AttemptMonitor,
) -> None:
    """SageMaker reports a killed host only after the job has ended."""
    nodes = nodes_of(monitor)
    for node in nodes:
        node.begin()
    monitor.read_updates()
    fail(nodes[0])
    monitor.read_updates()
    for node in nodes[:2]:
        node.end(1, tail=f"Traceback (most recent call last):\n  File 'train.py', line 3, in step\n{PEER_GONE}")
    nodes[2].die()
    monitor.read_updates()
    found, _ = monitor.judge(RootCause("of the supervisor"))
    assert found.cause is not None
    assert (found.cause.node_lost, found.cause.rank, found.cause.victims) == (2, 2, (0, 1))


def test_nodes_that_we_killed_after_a_failure_are_not_lost(monitor: AttemptMonitor) -> None:
    """`restarts: on: [failure]` counts the failure, even if its node was still busy when the time ended."""
    nodes = nodes_of(monitor)
    for node in nodes:
        node.begin()
        node.obeys = {}
    fail(nodes[2])
    monitor.read_updates()
    monitor.hangs._record.note(RankChanged(2, exit_code=5))
    monitor._run.clock.wait(60)
    monitor.turn()
    for node in nodes:
        node.die()
    monitor.read_updates()
    found, _ = monitor.judge(RootCause("of the supervisor"))
    assert (found.reason, found.cause.node_lost if found.cause else "") == ("failure", None)
    assert events(monitor, "lost-node") == []


def test_a_worker_that_broke_before_it_reported_is_lost_though_the_attempt_ends(monitor: AttemptMonitor) -> None:
    nodes = nodes_of(monitor)
    nodes[1].words = "Traceback (most recent call last):\nMemoryError"
    fail(nodes[0])
    monitor.read_updates()
    monitor.read_updates()
    assert [event["node"] for event in events(monitor, "lost-node")] == [1]
    assert [event["node"] for event in events(monitor, "not-started")] == [2]


@pytest.mark.parametrize(("has_process_group", "expected"), [(True, ["ranks-alone"]), (False, [])])
def test_ranks_that_never_met_are_warned_of_once_and_only_where_all_of_them_are_alone(
    make_run: Callable[..., FakeRun], has_process_group: bool, expected: list[str]
) -> None:
    monitor = monitored(make_run(nodes=3), has_process_group=has_process_group)
    nodes = nodes_of(monitor)
    for node in nodes[:2]:
        node.alone = (node.number,)
        node.report("alone", ranks=[node.number])
    monitor.read_updates()
    assert events(monitor, "warning") == []
    nodes[2].alone = (2,)
    nodes[2].report("alone", ranks=[2])
    monitor.read_updates()
    for _ in range(2):
        monitor.warn_if_alone()
    assert [event["code"] for event in events(monitor, "warning")] == expected


@pytest.mark.parametrize(
    ("marked", "tail", "ended_by_us", "found"),
    [
        (True, "Traceback (most recent call last):\nValueError: label", False, True),
        (False, "Traceback (most recent call last):\nValueError: label", False, False),
        (True, "Traceback (most recent call last):\nValueError: label", True, False),
        (True, "Traceback (most recent call last):\nConnectionError: Connection reset by peer", False, False),
    ],
)
def test_a_failure_comes_before_a_time_limit_only_where_its_rank_marked_it(
    marked: bool, tail: str, ended_by_us: bool, found: bool
) -> None:
    other = RankFailure(0, -15, 9.0, "", ended_by_us=True)
    first = RankFailure(1, 1, 9.0, tail, 1.0, ended_by_us, marked)
    assert failed_by_itself([other, first]) is found
    assert not failed_by_itself([])


def test_a_lost_node_and_not_its_signal_is_the_cause(monitor: AttemptMonitor) -> None:
    nodes = nodes_of(monitor)
    for node in nodes:
        node.begin()
    monitor.read_updates()
    nodes[1].lost_why, nodes[1].lost_since = "pod p-1 was deleted, and its node does not answer", 1007.0
    nodes[1].exit_code = -9  # exit code of a pod whose end will never be reported
    nodes[1].die()
    monitor.read_updates()
    nodes[0].end(-15, ended_by_us=True)
    nodes[2].end(-15, ended_by_us=True)
    monitor.read_updates()
    cause = monitor.judge(RootCause("no one saw"))[0].cause
    assert cause is not None
    assert cause.summary == "node 1 was lost: pod p-1 was deleted, and its node does not answer"
    assert (cause.node_lost, cause.signal, cause.exit_code) == (1, None, -9)
    assert [event["since"] for event in events(monitor, "lost-node")] == [1007.0]


def test_a_root_cause_has_its_node_and_what_that_read_of_its_machine(monitor: AttemptMonitor) -> None:
    nodes = nodes_of(monitor)
    for node in nodes:
        node.begin()
    nodes[1].host = HostReport(oom_kills_of_group=1)
    nodes[1].end(-9)
    nodes[0].end(-15, ended_by_us=True)
    nodes[2].end(-15, ended_by_us=True)
    monitor.read_updates()
    cause = monitor.judge(RootCause("no one saw"))[0].cause
    assert cause is not None
    assert (cause.rank, cause.node, cause.failure, cause.host) == (1, 1, "signal", HostReport(oom_kills_of_group=1))
    assert RootCause.from_json(cause.to_json()) == cause
