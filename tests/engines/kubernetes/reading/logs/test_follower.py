"""The complete log of a pod is read across broken connections, without more requests than necessary."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.kubernetes.api import Api, ClusterOfOneRun, Pods, client_of, reply, said, serving
from tests.engines.kubernetes.logins import FakeLogin, LeapingClock
from tests.helpers.until import until

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.login import AGAIN_SECONDS, Credentials
from windlass.engines.kubernetes.reading.logs.follower import (
    MAX_FOLLOWED,
    RESERVED_FILES,
    Connections,
    Follower,
    max_followed_now,
)
from windlass.supervise.log_tail import LogTail


@pytest.fixture
def cluster() -> Iterator[ClusterOfOneRun]:
    found = ClusterOfOneRun()
    yield found
    found.closed.set()


@pytest.fixture
def api(cluster: ClusterOfOneRun) -> Iterator[Api]:
    with serving(cluster) as served:
        yield served


def following(
    client: Client, cluster: ClusterOfOneRun, folder: Path, place: int = 0, connections: Connections | None = None
) -> Follower:
    return Follower(
        f"log of node {place}",
        client,
        Pods(cluster),
        place,
        lambda: LogTail(folder, place, [place]),
        connections or Connections(1),
        lambda: None,
    )


def log(folder: Path, rank: int = 0) -> list[str]:
    path = folder / f"rank-{rank}.log"
    return path.read_text().splitlines() if path.exists() else []


def asked(api: Api) -> int:
    return sum("/log" in one for one in api.asked)


def test_log_is_read_completely_despite_connections_cut_after_six_kilobytes(
    tmp_path: Path, cluster: ClusterOfOneRun, api: Api
) -> None:
    lines = [f"line {at} {'x' * 400}" for at in range(60)]
    cluster.logs[0] = said(*(f"[0] {line}" for line in lines))
    cluster.cut_logs = 6000
    follower = following(client_of(api, tmp_path), cluster, tmp_path / "a")
    until(lambda: len(log(tmp_path / "a")) >= 55)
    cluster.cut_logs = None
    cluster.end_pod(0, 0)
    follower.look()
    until(lambda: follower.is_done)
    assert log(tmp_path / "a") == lines


def test_log_without_new_lines_is_requested_less_and_less_often(
    tmp_path: Path, cluster: ClusterOfOneRun, api: Api
) -> None:
    cluster.logs[0] = said("[0] hi")
    follower = following(client_of(api, tmp_path), cluster, tmp_path / "a")
    until(lambda: asked(api) >= 2)
    began, before = time.monotonic(), asked(api)
    until(lambda: time.monotonic() - began > 1.5)
    assert asked(api) - before <= 3
    cluster.end_pod(0, 0)
    follower.look()
    until(lambda: follower.is_done)


def test_log_reader_survives_any_login_plugin_error(tmp_path: Path, cluster: ClusterOfOneRun, api: Api) -> None:
    cluster.logs[0] = said("[0] hi")
    client = client_of(api, tmp_path)
    is_broken = [True]

    def log_in() -> Credentials:
        if is_broken[0]:
            raise RuntimeError("the plugin broke")
        return Credentials("Bearer secret")

    client._login = FakeLogin("c", str(tmp_path / "kubeconfig"), log_in, LeapingClock(AGAIN_SECONDS))
    follower = following(client, cluster, tmp_path / "a")
    until(lambda: "log of node 0" in client.health._failing)
    assert not follower.is_done
    is_broken[0] = False
    until(lambda: log(tmp_path / "a") == ["hi"])
    assert list(client.health.updates()) == [], "it is no defect of ours, and has passed"
    follower.close()


def test_unexpected_error_ends_no_reader_thread(tmp_path: Path, cluster: ClusterOfOneRun, api: Api) -> None:
    cluster.logs[0] = said("[0] hi")
    client = client_of(api, tmp_path)
    broken = [KeyError("a defect"), ZeroDivisionError()]

    def intake() -> LogTail:
        if broken:
            raise broken.pop()
        return LogTail(tmp_path / "a", 0, [0])

    follower = Follower("log of node 0", client, Pods(cluster), 0, intake, Connections(1), lambda: None)
    until(lambda: log(tmp_path / "a") == ["hi"])
    messages = [event.message for event in client.health.updates()]
    assert len(messages) == 2
    assert "KeyError: 'a defect'" in messages[1]
    follower.close()


@pytest.mark.parametrize("answer", [reply(b"<html>bad gateway</html>", 502), reply(b"<html>not found</html>", 404)])
def test_html_page_of_a_proxy_loses_no_log_line(
    tmp_path: Path, cluster: ClusterOfOneRun, api: Api, answer: bytes
) -> None:
    cluster.logs[0] = said("[0] hi", "[0] end")
    cluster.end_pod(0, 0)
    api.answer = lambda *_: answer
    follower = following(client_of(api, tmp_path), cluster, tmp_path / "a")
    until(lambda: asked(api) >= 3)
    assert not follower.is_done
    api.answer = cluster
    until(lambda: follower.is_done)
    assert log(tmp_path / "a") == ["hi", "end"]


def test_logs_beyond_the_connection_limit_are_polled_in_turn(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun(6)
    cluster.is_silent = True
    for place in range(6):
        cluster.logs[place] = said(f"[{place}] hi")
    with serving(cluster) as api:
        client, connections = client_of(api, tmp_path), Connections(6, max_followed=2)
        followers = [following(client, cluster, tmp_path / "a", place, connections) for place in range(6)]
        # The two followed logs end only with their pods.
        until(lambda: sum(log(tmp_path / "a", place) == ["hi"] for place in range(6)) >= 4)
        assert sum("follow" in one for one in api.asked) == 2
        for place in range(6):
            cluster.end_pod(place, 0)
        cluster.closed.set()
        for follower in followers:
            follower.look()
        until(lambda: all(follower.is_done for follower in followers))
    assert [log(tmp_path / "a", place) for place in range(6)] == [["hi"]] * 6


def test_follower_uses_one_connection_and_no_open_file(tmp_path: Path) -> None:
    num_pods = 40
    cluster = ClusterOfOneRun(num_pods)
    cluster.is_silent = True
    for place in range(num_pods):
        cluster.logs[place] = said(f"[{place}] hi")
    with serving(cluster) as api:
        client, connections = client_of(api, tmp_path), Connections(num_pods)
        folder = tmp_path / "a"
        threads = threading.active_count()
        before = open_files(folder)
        for place in range(num_pods):
            following(client, cluster, folder, place, connections)
        until(lambda: api.num_open == num_pods)
        assert open_files(folder) - before == 0
        assert threading.active_count() - threads <= 2 * num_pods  # One thread here, and one of the server, per pod.
        cluster.closed.set()
        until(lambda: all(log(folder, place) == ["hi"] for place in range(num_pods)))


def open_files(folder: Path) -> int:
    """Returns how many files in a folder this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += link.readlink().is_relative_to(folder)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("soft", "most"),
    [
        (resource.RLIM_INFINITY, MAX_FOLLOWED),
        (100_000, MAX_FOLLOWED),
        (1024, MAX_FOLLOWED),
        (RESERVED_FILES + 20, 10),
        (16, 1),
    ],
)
def test_number_of_followed_logs_respects_open_file_limit(
    soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: {resource.RLIMIT_NOFILE: (soft, soft)}[which])
    assert max_followed_now() == most
