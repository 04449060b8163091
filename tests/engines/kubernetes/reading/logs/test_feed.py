"""Events of a node arrive from its pod, or from the log if the pod cannot send them: none is lost or written twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.api import Api, ClusterOfOneRun, Pods, client_of, reply, serving
from tests.helpers.clock import FakeClock
from tests.helpers.until import until

from windlass.engines.kubernetes.access.order_server import EventSink
from windlass.engines.kubernetes.reading.logs.feed import UNFED_SECONDS, NodeFeed, NodeFiles, Readers
from windlass.worker.order_protocol import ProtocolError

TOKEN = "t0ken"
BORN = 1_790_000_000.0


def event(number: int, token: str = TOKEN, kind: str = "warning", **data: Any) -> bytes:
    data = {"message": f"event {number}"} if kind == "warning" else data
    return json.dumps({"kind": kind, "at": BORN + number, **data, "k": token}).encode() + b"\n"


EVENTS = [
    event(0, kind="node", pid=7, start_ticks=1, boot="b", start="cold"),
    *(event(number) for number in range(1, 6)),
]
END = event(6, kind="end", failures=[], ended_by="itself", facts={})


def logged(*lines: bytes, start: int = 0) -> bytes:
    """Returns lines of a log in the format of the API, one second apart."""
    stamps = (datetime.fromtimestamp(BORN + at, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at in range(start, 1000))
    return b"".join(
        b"%s.500000000Z %s\n" % (stamp.encode(), line.rstrip(b"\n")) for stamp, line in zip(stamps, lines, strict=False)
    )


def tagged(*events: bytes) -> list[bytes]:
    return [b"[n] " + one for one in events]


class Feeds:
    """Fake order server that records subscriptions."""

    def __init__(self) -> None:
        self.sinks: dict[str, EventSink] = {}

    def subscribe(self, pod: str, sink: EventSink) -> None:
        self.sinks[pod] = sink

    def unsubscribe(self, pod: str, sink: EventSink) -> None:
        assert self.sinks.pop(pod) is sink


class Scene:
    """One pod with its feed and its log."""

    def __init__(self, folder: Path, api: Api, cluster: ClusterOfOneRun) -> None:
        self.folder, self.cluster, self.api = folder / "run" / "attempt-1", cluster, api
        self.client = client_of(api, folder)
        self.pods, self.feeds, self.readers = Pods(cluster), Feeds(), Readers(1)
        self.clock = FakeClock()
        self.feed = self.made()
        self.feed.look()

    def made(self, number: int = 1) -> NodeFeed:
        files = NodeFiles(self.folder.with_name(f"attempt-{number}"), 0, (0,), number, 1)
        return NodeFeed(
            "log of node 0",
            self.client,
            self.pods,
            0,
            files,
            self.feeds,
            self.readers,
            lambda: None,
            self.clock,
        )

    def send(self, *events: bytes, token: str = TOKEN) -> None:
        self.feed.take(token, b"".join(events))

    def end_pod(self, code: int = 0) -> None:
        self.cluster.end_pod(0, code)
        self.feed.look()
        self.feed.catch_up()

    def asked(self) -> list[str]:
        return [one for one in self.api.asked if "/log" in one]

    @property
    def text(self) -> bytes:
        return (self.folder / "node-0.events").read_bytes()

    def close(self) -> None:
        self.feed.close()
        self.readers.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    cluster = ClusterOfOneRun()
    with serving(cluster) as api, closing(Scene(tmp_path, api, cluster)) as made:
        yield made
        cluster.closed.set()


def test_log_is_not_read_if_the_node_sent_its_end(scene: Scene) -> None:
    assert scene.feeds.sinks == {"r-1-1-0": scene.feed}
    scene.send(*EVENTS)
    scene.send(END, b"end\n")
    scene.feed.catch_up()
    assert not scene.feed.is_done, "its pod has not ended"
    scene.end_pod()
    assert scene.feed.is_done
    assert scene.text == b"".join([*EVENTS, END])
    assert scene.asked() == []
    assert scene.feeds.sinks == {}


@pytest.mark.parametrize(("grace", "is_done"), [(0, True), (30, False)])
def test_feed_of_force_deleted_pod_completes_without_its_status(scene: Scene, grace: int, is_done: bool) -> None:
    """The Job controller removes its finalizer a second later; until then, the pod's status reports it as running."""
    scene.send(*EVENTS)
    scene.cluster.delete_pod(0, grace)
    scene.feed.catch_up()
    assert not scene.feed.is_done, "its end was not sent"
    scene.send(END, b"end\n")
    scene.feed.catch_up()
    assert scene.feed.is_done is is_done
    assert scene.asked() == []


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_events_are_written_completely_wherever_the_feed_is_split(scene: Scene, size: int) -> None:
    data = b"".join([*EVENTS, END])
    for at in range(0, len(data), size):
        scene.feed.take(TOKEN, data[at : at + size])
        assert scene.text == b"" or scene.text.endswith(b"\n")
        assert scene.feed.offset == min(at + size, len(data))
    assert scene.text == data


def test_feed_of_a_waiting_pod_is_complete(scene: Scene) -> None:
    scene.send(*EVENTS, END)
    assert not scene.feed.is_finished
    scene.send(b"over\n")
    assert scene.feed.is_finished
    scene.feed.catch_up()
    assert scene.feed.is_done
    assert scene.asked() == []


@pytest.mark.parametrize("num_sent", range(7))
def test_unsent_events_of_a_killed_pod_are_read_from_its_log(scene: Scene, num_sent: int) -> None:
    """The log is read from the last received event on, or from its beginning if no event was received."""
    scene.cluster.logs[0] = logged(b"entry point", *tagged(*EVENTS, END), b"[w] Traceback")
    data = b"".join(EVENTS)
    at = len(b"".join(EVENTS[:num_sent])) + (9 if num_sent < len(EVENTS) else 0)
    scene.feed.take(TOKEN, data[:at])
    scene.end_pod(1)
    until(lambda: scene.feed.is_done)
    assert scene.text == b"".join([*EVENTS, END])
    assert len(scene.asked()) == 1
    assert ("sinceTime" in scene.asked()[0]) == (num_sent > 0)
    assert "Traceback" in (scene.folder / "node-0.out").read_text()


def test_log_is_read_if_sent_end_contradicts_container(scene: Scene) -> None:
    scene.cluster.logs[0] = logged(*tagged(*EVENTS, END), b"[w] Traceback")
    scene.send(*EVENTS, END)
    scene.end_pod(1)
    until(lambda: scene.feed.is_done)
    assert scene.text == b"".join([*EVENTS, END])
    assert (scene.folder / "node-0.out").read_text() == "Traceback\n"


def test_log_of_unconnected_pod_is_read_at_intervals(scene: Scene) -> None:
    scene.cluster.logs[0] = logged(*tagged(*EVENTS[:2]), b"[0] step 1")
    scene.feed.catch_up()
    assert scene.asked() == []
    scene.clock.now += UNFED_SECONDS
    scene.feed.catch_up()
    until(lambda: not scene.feed._is_reading)
    assert scene.text == b"".join(EVENTS[:2])
    assert (scene.folder / "rank-0.log").stat().st_size == len("step 1\n")
    scene.cluster.logs[0] += logged(*tagged(*EVENTS[2:4]), start=3)
    scene.feed.catch_up()
    assert len(scene.asked()) == 1
    scene.clock.now += scene.readers.pause_seconds
    scene.feed.catch_up()
    until(lambda: scene.text == b"".join(EVENTS[:4]))
    # The pod connects, and its feed sends all events from the beginning.
    for one in (*EVENTS, END):
        scene.send(one)
    assert scene.text == b"".join([*EVENTS, END])
    scene.clock.now += 1000
    until(lambda: not scene.feed._is_reading)
    scene.feed.catch_up()
    assert len(scene.asked()) == 2
    scene.feed.disconnected()
    scene.feed.catch_up()
    assert len(scene.asked()) == 2
    scene.clock.now += UNFED_SECONDS
    scene.feed.catch_up()
    until(lambda: len(scene.asked()) == 3)


def test_restarted_supervisor_writes_no_event_twice(scene: Scene) -> None:
    scene.send(*EVENTS[:4])
    scene.feed.close()
    with open(scene.folder / "node-0.events", "ab") as file:
        file.write(b'{"torn')
    scene.feed = scene.made()
    scene.feed.look()
    assert scene.feed.offset == 0
    scene.send(*EVENTS, END)
    assert scene.text == b"".join([*EVENTS, END])


def test_events_of_a_restarted_container_are_ignored(scene: Scene) -> None:
    scene.send(*EVENTS[:2])
    scene.send(*(event(number, "t1ken") for number in range(9)), b"over\n", token="t1ken")
    assert scene.text == b"".join(EVENTS[:2])
    assert not scene.feed.is_finished
    assert scene.feed.offset == len(scene.text)


def test_the_end_of_an_attempt_is_found_in_the_log_of_a_pod_that_is_reused(scene: Scene) -> None:
    scene.feed.close()
    other = [EVENTS[0].replace(b"t0ken", b"t1ken"), *(event(number, "t1ken") for number in range(10, 13))]
    scene.cluster.logs[0] = logged(
        *tagged(*EVENTS), b"[a] over t0ken", b"[a] 2", *tagged(*other), b"[a] over t1ken", b"[a] 3", *tagged(END)
    )
    scene.feed = scene.made(2)
    scene.clock.now += UNFED_SECONDS
    scene.feed.catch_up()
    until(lambda: not scene.feed._is_reading)
    scene.feed.catch_up()
    assert scene.feed.is_finished
    assert scene.feed.is_done
    assert (scene.folder.with_name("attempt-2") / "node-0.events").read_bytes() == b"".join(other)


def test_events_that_violate_the_protocol_are_rejected(scene: Scene) -> None:
    scene.send(*EVENTS[:2])
    for _ in range(16):
        scene.feed.take(TOKEN, b"x" * (1 << 20))
    with pytest.raises(ProtocolError):
        scene.feed.take(TOKEN, b"x" * (1 << 20))
    assert scene.text == b"".join(EVENTS[:2])


def test_rank_logs_grow_to_the_printed_length(scene: Scene) -> None:
    scene.feed.take_printed({0: 1 << 40, 1: 5})
    log = scene.folder / "rank-0.log"
    assert (log.stat().st_size, log.stat().st_blocks) == (1 << 40, 0)
    at = log.stat().st_mtime_ns
    scene.feed.take_printed({0: 7})
    assert (log.stat().st_size, log.stat().st_mtime_ns) == (1 << 40, at)
    assert not (scene.folder / "rank-1.log").exists()


def test_full_disk_leaves_complete_events_and_others_are_sent_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.send(*EVENTS[:2], EVENTS[2][:5])
    with monkeypatch.context() as patched:
        patched.setattr(NodeFiles, "_append", _full)
        with pytest.raises(OSError, match="full"):
            scene.feed.take(TOKEN, EVENTS[2][5:] + EVENTS[3])
    assert scene.feed.offset == len(b"".join(EVENTS[:2])) + 5
    scene.feed.take(TOKEN, EVENTS[2][5:] + EVENTS[3])
    assert scene.text == b"".join(EVENTS[:4])


def _full(*_: object) -> None:
    raise OSError("the disk is full")


def test_feed_of_a_pod_that_will_never_exist_is_complete(scene: Scene) -> None:
    scene.cluster.pods[0] = None  # type: ignore[call-overload]
    scene.feed.catch_up()
    assert not scene.feed.is_done
    scene.pods.gone = True
    scene.feed.catch_up()
    assert scene.feed.is_done


def test_unreadable_log_of_ended_attempt_is_not_reported(scene: Scene) -> None:
    broken = reply({"kind": "Status", "message": "dial tcp 10.0.0.7:10250: no route to host", "code": 500}, 500)
    asked, may_answer = threading.Event(), threading.Event()

    def late(method: str, path: str) -> bytes:
        if "/log" not in path:
            return scene.cluster(method, path)
        asked.set()
        may_answer.wait(10)
        return broken

    scene.send(*EVENTS)
    scene.api.answer = late
    scene.end_pod(1)
    assert asked.wait(10)
    scene.feed.close()  # A read of its log is in progress.
    may_answer.set()
    scene.readers._pool.shutdown(wait=True)
    assert scene.client.health.failing() is None
