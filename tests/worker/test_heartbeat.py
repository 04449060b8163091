"""Nodes detect unreachable nodes: real datagrams on loopback, with a fake clock."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.helpers.clock import FakeClock
from tests.helpers.ports import quiet_port

from windlass.worker.heartbeat import Heartbeat
from windlass.worker.protocol import HeartbeatSpec

ADDRESSES = {0: "127.0.0.1", 1: "127.0.0.2", 2: "127.0.0.3"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def port() -> int:
    return quiet_port(socket.SOCK_DGRAM)


@pytest.fixture
def start(clock: FakeClock, port: int) -> Iterator[Callable[..., Heartbeat]]:
    made: list[Heartbeat] = []

    def start(node: int, attempt: str = "run.1", **changes: Any) -> Heartbeat:
        peers = {str(other): address for other, address in ADDRESSES.items() if other != node}
        spec = HeartbeatSpec(attempt, node, ADDRESSES[node], peers, port)
        made.append(Heartbeat(spec.replace(**changes), clock.monotonic))
        return made[-1]

    yield start
    for heartbeat in made:
        heartbeat.close()


def beat(*nodes: Heartbeat) -> None:
    """Lets all nodes send and receive heartbeats."""
    for node in nodes:
        node.turn()
    for node in nodes:
        while select.select([node.socket], [], [], 0.01)[0]:
            node.turn()


def test_nodes_that_receive_all_heartbeats_report_nothing(clock: FakeClock, start: Callable[..., Heartbeat]) -> None:
    nodes = [start(node) for node in ADDRESSES]
    for _ in range(20):
        beat(*nodes)
        clock.now += 0.5
    assert [node.silent for node in nodes] == [(), (), ()]


def test_silent_node_is_reported_by_the_others(clock: FakeClock, start: Callable[..., Heartbeat]) -> None:
    nodes = [start(node) for node in ADDRESSES]
    beat(*nodes)
    for _ in range(7):
        clock.now += 0.5
        beat(*nodes[:2])
    assert [node.silent for node in nodes[:2]] == [(2,), (2,)]


def test_node_whose_heartbeats_return_is_no_longer_reported(clock: FakeClock, start: Callable[..., Heartbeat]) -> None:
    nodes = [start(node) for node in ADDRESSES]
    beat(*nodes)
    clock.now += 4
    beat(nodes[2])
    clock.now += 1
    changes = [nodes[0].turn(), nodes[0].silent]
    assert changes == [True, (1,)]


def test_slow_start_of_a_node_is_not_reported(clock: FakeClock, start: Callable[..., Heartbeat]) -> None:
    node = start(0)
    clock.now += 29
    node.turn()
    assert not node.silent
    clock.now += 2
    assert node.turn()
    assert node.silent == (1, 2)


def test_heartbeats_are_due_at_intervals(clock: FakeClock, start: Callable[..., Heartbeat]) -> None:
    node = start(0)
    assert node.due() == 0
    node.turn()
    assert node.due() == pytest.approx(0.5)
    clock.now += 9
    assert node.due() == 0


@pytest.mark.parametrize(
    ("source", "data"),
    [
        (1, json.dumps({"id": "run.0", "node": 1}).encode()),
        (1, json.dumps({"id": "run.1", "node": 2}).encode()),
        (1, json.dumps({"id": "run.1", "node": 7}).encode()),
        (1, json.dumps({"id": "run.1", "node": [1]}).encode()),
        (1, b"[]"),
        (1, b"7"),
        (1, b"\xff\x00 no json"),
        (1, b""),
        (1, b"x" * 2000),
    ],
    ids=["attempt", "impostor", "stranger", "list", "array", "number", "bytes", "empty", "long"],
)
def test_other_datagrams_do_not_count_as_heartbeats(
    clock: FakeClock, port: int, start: Callable[..., Heartbeat], source: int, data: bytes
) -> None:
    node = start(0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((ADDRESSES[source], port))
        clock.now += 29
        other.sendto(data, (ADDRESSES[0], port))
        select.select([node.socket], [], [], 1.0)
        node.turn()
    clock.now += 2
    node.turn()
    assert node.silent == (1, 2)
