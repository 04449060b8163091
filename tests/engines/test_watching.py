"""The attempt monitor, with nodes made by hand: which deaths are losses, and which are not."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.engines.keeping.hearing import ProgressOfNodes
from windlass.engines.keeping.membership import Membership
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.rollcall import RollCall
from windlass.engines.keeping.told import Told
from windlass.engines.keeping.watching import Watch
from windlass.runs.store import RunWriter, Store
from windlass.worker.blame import failed_by_itself, first_cause

POLICY = {"grace_seconds": 0.0, "max_restarts": 3, "restart_on": ["node-loss"]}


class HandNode(Told):
    """A node whose events file the test writes; a signal ends it as it ends a process without handlers."""

    exit_code = -signal.SIGTERM

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(number, (number,), folder)
        self.is_alive = True

    def say(self, kind: str, **data: Any) -> None:
        with open(self.path("events"), "a") as file:
            file.write(json.dumps({"kind": kind, "at": 1.0, **data}) + "\n")

    def lives(self) -> bool:
        return self.is_alive

    def send(self, number: signal.Signals) -> None:
        self.is_alive = self.is_alive and self.path("events").exists()

    def sweep(self) -> None:
        pass


class HandAttempt:
    """These nodes."""

    refusals: list[str] = []  # noqa: RUF012 - as the protocol has it
    is_taken_back = False

    def __init__(self, folder: Path, nodes: list[HandNode]) -> None:
        self.folder = folder
        self.nodes = nodes

    @property
    def over(self) -> bool:
        return all(node.over for node in self.nodes)

    def live_nodes(self) -> list[HandNode]:
        return [node for node in self.nodes if not node.over]

    def send(self, number: signal.Signals) -> None:
        for node in self.live_nodes():
            node.send(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def failures(self) -> list[dict[str, Any]]:
        return [failure for node in self.nodes for failure in node.failures]

    def last_sign_of_life(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    store = Store(tmp_path / "home")
    writer = store.create("r-1", name="r", target="local", output_dir="", plan="{}", time=0.0)
    writer.note("attempt", {"number": 1, "world_size": 3, "nodes": [[0], [1], [2]]}, at=0.0)
    yield writer
    writer.close()
    store.close()


@pytest.fixture
def nodes(tmp_path: Path) -> list[HandNode]:
    return [HandNode(place, tmp_path) for place in range(3)]


@pytest.fixture
def watch(writer: RunWriter, nodes: list[HandNode], tmp_path: Path) -> Watch:
    membership = Membership(3, 3, 0.0)
    record = Recording(writer, membership.take)
    roll_call = RollCall(record, membership, set)
    return Watch(HandAttempt(tmp_path, nodes), record, POLICY, roll_call, membership, ProgressOfNodes(record, 3))


def begin(node: HandNode) -> None:
    node.say("node", start="cold", pid=1, start_ticks=1, boot="")


def fail(node: HandNode) -> None:
    begin(node)
    node.say("failing", rank=node.number, waited=False)


def end(node: HandNode) -> None:
    failure = {"rank": node.number, "exit_code": 1, "at": 1.0, "tail": "NameError: x", "traceback_at": None}
    node.say("end", failures=[{**failure, "ended_by_us": False}], ended_by="failure", facts={})


def events(writer: RunWriter, kind: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in writer.events() if event.kind == kind]


@pytest.mark.parametrize("failed", [0, 2])
def test_a_node_ended_before_it_started_is_neither_lost_nor_a_victim(
    watch: Watch, nodes: list[HandNode], writer: RunWriter, failed: int
) -> None:
    fail(nodes[failed])
    watch.read_news()
    end(nodes[failed])
    watch.read_news()
    assert watch.attempt.over
    others = [node.number for node in nodes if node.number != failed]
    assert events(writer, "lost-node") == []
    told = [{"node": number, "why": f"ended because node {failed} failed"} for number in others]
    assert events(writer, "not-started") == told
    cause = first_cause(watch.attempt.failures())
    assert cause is not None
    assert (cause["rank"], cause["victims"]) == (failed, [])


def test_a_supervisor_that_takes_over_sees_what_the_one_before_it_ended(
    watch: Watch, nodes: list[HandNode], writer: RunWriter
) -> None:
    for node in nodes[:2]:
        node.is_alive = False
    fail(nodes[2])
    watch.read_news()
    assert [event["node"] for event in events(writer, "not-started")] == [0, 1]
    assert events(writer, "lost-node") == []


def test_a_node_that_dies_by_itself_before_it_starts_is_lost(
    watch: Watch, nodes: list[HandNode], writer: RunWriter
) -> None:
    nodes[1].is_alive = False
    watch.read_news()
    watch.read_news()
    assert [event["node"] for event in events(writer, "lost-node")] == [1]
    told = [{"node": number, "why": "ended because node 1 failed"} for number in (0, 2)]
    assert events(writer, "not-started") == told


def test_a_worker_that_broke_before_it_reported_is_lost_though_the_attempt_ends(
    watch: Watch, nodes: list[HandNode], writer: RunWriter
) -> None:
    nodes[1].path("out").write_text("Traceback (most recent call last):\nMemoryError\n")
    fail(nodes[0])
    watch.read_news()
    watch.read_news()
    assert [event["node"] for event in events(writer, "lost-node")] == [1]
    assert [event["node"] for event in events(writer, "not-started")] == [2]


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
    failure = {"exit_code": 1, "at": 9.0, "traceback_at": 1.0}
    other = {**failure, "rank": 0, "exit_code": -15, "tail": "", "traceback_at": None, "ended_by_us": True}
    first = {**failure, "rank": 1, "tail": tail, "ended_by_us": ended_by_us, **({"marked": True} if marked else {})}
    assert failed_by_itself([other, first]) is found
    assert not failed_by_itself([])
