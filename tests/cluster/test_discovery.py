"""Runs that another machine started are listed, followed, ended and removed without their record.

The other machine is emulated by another home folder.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Result, ended, home, windlass
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Cluster
from tests.cluster.rights import until_role_is_granted
from tests.cluster.test_exec_copy import WAY_SECONDS, submit, targets, write_targets
from tests.helpers.until import until

from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.supervise.process import supervisor_pid

__all__ = ["ended", "home", "targets", "windlass"]

pytestmark = pytest.mark.timeout(900)

TALK = """
import os, socket, sys, time
rank, attempt = os.environ["WINDLASS_RANK"], os.environ["WINDLASS_ATTEMPT"]
for number in range(20):
    print(f"step {number}/20 loss {attempt}", flush=True)
    time.sleep(0.1)
place = (os.environ["WINDLASS_MASTER_ADDR"] if rank == "1" else "", 23000)
if (rank, attempt) == ("0", "1"):
    listener = socket.create_server(place)
    time.sleep(600)
while (rank, attempt) == ("1", "1"):  # rank 0 may have started later: it is ended by this failure
    try:
        socket.create_connection(place, timeout=5).close()
    except OSError:
        time.sleep(0.1)
    else:
        sys.exit(3)
"""
WAIT = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("leaves", flush=True), sys.exit(0)))
print("waits", flush=True)
time.sleep(3600)
"""
Elsewhere = Callable[..., Result]


@pytest.fixture
def elsewhere(windlass: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Elsewhere:
    """Command line of a machine without a record of the runs of this one."""

    def call(*words: str) -> Result:
        monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "elsewhere"))
        try:
            return windlass(*words, "--on", "bed")
        finally:
            monkeypatch.setenv("WINDLASS_HOME", str(home))

    return call


def trains(elsewhere: Elsewhere, run: str) -> None:
    until(lambda: elsewhere("status", run, "-o", "json").json["phase"] == "training", "waits", WAY_SECONDS)


def kill_supervisor(home: Path, run: str) -> None:
    """Kills the supervisor as soon as it runs: on a busy machine the pods may start earlier."""
    with Store(home) as store:
        run_dir = store.run_dir(run)
    pid = until(lambda: supervisor_pid(run_dir), "no supervisor yet", WAY_SECONDS)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def events(home: Path, run: str, kind: str) -> list[dict[str, object]]:
    with Store(home) as store:
        return [dict(event.data) for event in store.events(run) if event.kind == kind]


@pytest.mark.parametrize("via", ["job", pytest.param("jobset", marks=pytest.mark.nightly)])
def test_run_is_listed_and_followed_from_another_machine(
    via: str, windlass: Call, elsewhere: Elsewhere, targets: None, ended: Callable[..., Status]
) -> None:
    assert elsewhere("ps", "-o", "json").json == []
    run = submit(windlass, TALK, "--nodes", "2", "--set", "restarts=1", "--set", f"kubernetes.via={via}")
    followed = elsewhere("logs", "-f", run)
    assert followed.code == 0, followed.err
    lines = followed.out.splitlines()
    for rank in "01":
        of = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}]")]
        assert of == [f"step {number}/20 loss {attempt}" for attempt in "12" for number in range(20)]

    assert ended(run, WAY_SECONDS).exit_code == 0
    # The cluster reports the end of pods some time after the supervisor has read it in their logs.
    until(lambda: elsewhere("status", run, "-o", "json").json["phase"] == "succeeded", "not ended", WAY_SECONDS)
    [seen] = elsewhere("ps", "-o", "json").json
    hold("ps", [seen])
    assert (seen["id"], seen["name"], seen["phase"]) == (run, "wait", "succeeded")
    assert seen["attempt"] in (1, 2), "the second may be in the pods of the first"
    assert (seen["pods_total"], seen["kept"]) == (2, "elsewhere")
    one = elsewhere("status", run[:6], "-o", "json").json
    hold("status", one)
    assert one["progress"]["total"] == 20

    def states() -> list[tuple[int, str]]:
        return [(pod["node"], pod["state"]) for pod in elsewhere("status", run, "-o", "json").json["pods"]]

    until(lambda: states() == [(0, "ended"), (1, "ended")], lambda: str(states()), WAY_SECONDS)
    assert elsewhere("status", run, "--exit-code").code == 0
    assert elsewhere("logs", run, "--rank", "1", "--tail", "1").out == "step 19/20 loss 2\n"

    # the machine with the supervisor reads its own record
    assert windlass("ps", "--on", "bed", "-o", "json").json[0]["kept"] == "here"
    assert "ledger" in windlass("status", run, "--on", "bed", "-o", "json").json
    assert elsewhere("rm", run, "-o", "json").json == {"removed": [run]}
    until(lambda: elsewhere("ps", "-o", "json").json == [], "not removed", WAY_SECONDS)
    assert elsewhere("status", run).code == 102
    assert windlass("status", run, "-o", "json").json["phase"] == "succeeded"


@pytest.mark.parametrize("via", ["job", pytest.param("jobset", marks=pytest.mark.nightly)])
def test_stop_from_another_machine_is_requested_from_the_supervisor(
    via: str, windlass: Call, elsewhere: Elsewhere, targets: None, home: Path, ended: Callable[..., Status]
) -> None:
    run = submit(windlass, WAIT, "--nodes", "2", "--set", "restarts=2", "--set", f"kubernetes.via={via}")
    until(lambda: windlass("logs", run).out.count("waits") == 2, "both ranks handle SIGTERM", WAY_SECONDS)
    trains(elsewhere, run)
    assert elsewhere("stop").code == 2, "whose run it is must be said"
    refused = elsewhere("rm", run)
    assert (refused.code, "has not ended" in refused.err) == (2, True)
    stopped = elsewhere("stop", run, "-o", "json")
    assert (stopped.code, stopped.json["phase"]) == (0, "stopped"), stopped.err
    hold("stop", stopped.json)

    status = ended(run, WAY_SECONDS)
    assert (status.phase, len(status.attempts), status.restarts_left) == ("stopped", 1, 2)
    assert [event["reason"] for event in events(home, run, "stop")] == ["elsewhere"]
    assert windlass("logs", run).out.count("leaves") == 2, "the ranks had their grace"
    again = elsewhere("stop", run)
    assert (again.code, "had ended already" in again.out) == (0, True)

    assert windlass("resume", run, "-d").code == 0
    trains(elsewhere, run)
    assert elsewhere("rm", "--force", run).code == 0
    assert ended(run, WAY_SECONDS).phase == "stopped"
    assert len(ended(run).attempts) == 2
    until(lambda: elsewhere("ps", "-q").out == "", "not removed", WAY_SECONDS)


def test_run_stopped_from_another_machine_is_not_restarted(
    windlass: Call, elsewhere: Elsewhere, targets: None, home: Path, ended: Callable[..., Status]
) -> None:
    run = submit(windlass, WAIT, "--set", "restarts=2", "--set", "kubernetes.via=job")
    trains(elsewhere, run)
    kill_supervisor(home, run)
    assert elsewhere("stop", run, "-o", "json").json["phase"] == "stopped"
    status = ended(run, WAY_SECONDS)
    assert (status.phase, len(status.attempts)) == ("stopped", 1)


def test_login_without_permissions_gets_an_error(
    windlass: Call, elsewhere: Elsewhere, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    write_targets(cluster, namespace, monkeypatch, "bed-nobody")
    for words in (("ps",), ("status", "digits-7f3k2"), ("logs", "digits-7f3k2"), ("stop", "digits-7f3k2")):
        refused = elsewhere(*words)
        assert (refused.code, refused.out) == (1, "")
        assert "cannot" in refused.err
        assert "windlass check --on" in refused.err


def test_role_printed_by_check_suffices(
    windlass: Call, elsewhere: Elsewhere, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    write_targets(cluster, namespace, monkeypatch, "bed-limited")
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=windlass("check", "--on", "bed", "--role").out)
    until_role_is_granted(cluster, namespace)
    run = submit(windlass, WAIT)
    until(lambda: elsewhere("logs", run).out == "[0] waits\n", "no line of the script", WAY_SECONDS)
    everywhere = elsewhere("ps", "-A")
    assert (everywhere.code, "cannot list" in everywhere.err) == (1, True)
    assert elsewhere("rm", "--force", run).code == 0
