"""The main process of a pod, run as a process: it waits after a failure, runs the next attempt, and exits on
request.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from tests.helpers.until import passed, until
from tests.worker.pod_process import Pod

from windlass.worker import pod_reuse
from windlass.worker.protocol import STACKS_SIGNAL, STOP_NOW_SIGNAL


def test_pod_whose_rank_failed_runs_the_next_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    assert one.order(2, "fails") == pod_reuse.TAKEN
    one.wait_for("[a] 2")
    one.wait_for("[0] attempt 2")
    assert one.order(3, "succeeds") == pod_reuse.TAKEN  # blocks until the pod waits again
    assert one.wait() == 0
    assert "[0] attempt 3" in one.text()


def test_setup_runs_once_per_pod(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails", setup="echo set up"))
    one.wait_for("[a] over")
    assert one.order(2, "succeeds") == pod_reuse.TAKEN
    assert one.wait() == 0
    assert (one.text().count("[0] set up"), one.text().count("[0] attempt")) == (1, 2)


def test_failed_setup_is_repeated_by_the_next_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "succeeds", setup="echo set up; test -e there || { touch there; exit 4; }"))
    one.wait_for("[a] over")
    assert "[0] attempt" not in one.text()
    assert one.order(2, "succeeds") == pod_reuse.TAKEN
    assert one.wait() == 0
    assert (one.text().count("[0] set up"), one.text().count("[0] attempt")) == (2, 1)


def test_pod_that_succeeded_exits(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "succeeds"))
    assert one.wait() == 0
    assert "[a]" not in one.text()


def test_pod_without_an_order_exits_with_the_code_of_its_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails", reuse_wait_seconds=0.2))
    assert one.wait() == 1
    assert "[a] over" in one.text()


def test_order_during_the_exit_of_a_pod_is_accepted_or_refused_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def must_exit() -> bool:
        if next(calls) == 0:
            (tmp_path / pod_reuse.WAITING).unlink()
        else:
            (tmp_path / pod_reuse.NEXT).touch()
        return False

    assert pod_reuse.wait(str(tmp_path), 0, must_exit) == str(tmp_path / pod_reuse.NEXT)
    (tmp_path / pod_reuse.NEXT).unlink()

    # the file disappears a moment later
    monkeypatch.setattr(pod_reuse, "_is_waiting_within", lambda folder, seconds: True)
    assert pod_reuse.order(str(tmp_path), b"", 2) == pod_reuse.NOT_TAKEN
    assert list(tmp_path.iterdir()) == []


def test_waiting_pod_of_an_ended_run_is_ended(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    assert pod_reuse.leave(str(tmp_path), one.process.pid) == pod_reuse.TAKEN
    assert one.wait() == 1


def test_pod_with_a_running_attempt_is_not_ended(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    assert pod_reuse.leave(str(tmp_path), one.process.pid, patience_seconds=0.2) == pod_reuse.NOT_TAKEN
    assert one.process.poll() is None


def test_pod_waits_for_the_next_attempt_after_the_supervisor_ends_its_ranks(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    one.signal_as_supervisor(1)
    one.wait_for("[a] over")
    assert one.order(2, "succeeds") == pod_reuse.TAKEN
    assert one.wait() == 0


def test_signal_marked_before_the_end_of_the_node_counts_as_the_supervisors(tmp_path: Path, pods: list[Pod]) -> None:
    (tmp_path / f"{pod_reuse.SIGNALLED}{int(signal.SIGTERM)}").touch()
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    one.process.send_signal(signal.SIGTERM)  # arrives after its mark
    assert one.order(2, "fails") == pod_reuse.TAKEN
    until(lambda: one.text().count("[a] over") == 2 or one.process.poll() is not None)
    one.process.send_signal(signal.SIGTERM)  # has no mark, like the signal of a node shutdown
    assert one.wait() == 1
    assert one.text().count("[a] over") == 2


def test_two_simultaneous_signals_both_count_as_the_supervisors(tmp_path: Path, pods: list[Pod]) -> None:
    """A pod that reconnects receives all requests that were sent meanwhile."""
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    one.process.send_signal(signal.SIGSTOP)
    for number in (signal.SIGTERM, STOP_NOW_SIGNAL):
        one.signal_as_supervisor(1, number)
    one.process.send_signal(signal.SIGCONT)
    until(lambda: not list(tmp_path.glob("signalled-*")) or one.process.poll() is not None)
    assert one.order(2, "succeeds") == pod_reuse.TAKEN
    one.wait_for("[0] attempt 2")


def test_mark_is_valid_only_for_its_signal(tmp_path: Path, pods: list[Pod]) -> None:
    """The supervisor requested stacks, and then the machine is shut down."""
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    one.signal_as_supervisor(1, STACKS_SIGNAL)
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 1
    assert "[a] over" not in one.text()


def test_pod_exits_on_a_node_shutdown(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 1
    assert "[a] over" not in one.text()


@pytest.mark.parametrize("is_first", [True, False])
def test_evicted_pod_exits_although_the_supervisor_ends_its_ranks(
    tmp_path: Path, pods: list[Pod], is_first: bool
) -> None:
    """A pod is evicted, and its supervisor then ends all nodes; the pod must not wait until the kubelet kills it."""
    (tmp_path / "out").mkdir()
    pods.append(one := Pod(tmp_path, "saves"))
    one.wait_for("[0] attempt 1")
    if is_first:
        one.process.send_signal(signal.SIGTERM)
        one.wait_for("[0] saves")
        one.signal_as_supervisor(1)
    else:
        one.signal_as_supervisor(1)
        until(lambda: not (tmp_path / f"{pod_reuse.SIGNALLED}{int(signal.SIGTERM)}").exists())
        one.process.send_signal(signal.SIGTERM)
    until(lambda: not (tmp_path / f"{pod_reuse.SIGNALLED}{int(signal.SIGTERM)}").exists())
    (tmp_path / "out" / "saved").touch()
    assert one.wait() == 1
    assert "[a] over" not in one.text()


def test_late_signal_does_not_reach_the_next_attempt(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails"))
    one.wait_for("[a] over")
    one.signal_as_supervisor(1)  # the supervisor had not yet seen the end of the node
    assert one.order(2, "sleeps") == pod_reuse.TAKEN
    one.wait_for("[0] attempt 2")
    one.signal_as_supervisor(1)
    passed(0.2)
    assert one.process.poll() is None
    one.signal_as_supervisor(2)
    until(lambda: one.text().count("[a] over") == 2 or one.process.poll() is not None)
    assert one.text().count("[a] over") == 2, one.text()


def test_signal_waits_until_the_order_of_its_attempt_is_accepted(tmp_path: Path) -> None:
    (tmp_path / pod_reuse.NEXT).touch()
    with subprocess.Popen(["sleep", "600"]) as first:
        told = threading.Thread(target=pod_reuse.signal_first, args=(str(tmp_path), 2, signal.SIGTERM, first.pid, 600))
        told.start()
        told.join(0.1)
        assert first.poll() is None, "the pod would take the signal for one of the attempt before"
        (tmp_path / pod_reuse.NEXT).rename(tmp_path / pod_reuse.taken(2))
        told.join()
        try:
            assert first.wait(100) == -signal.SIGTERM
        finally:
            first.kill()
