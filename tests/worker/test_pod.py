"""Steps of a pod's main process before its node starts."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.failing_disk import failing_reads
from tests.helpers.until import passed
from tests.worker.pod_process import Pod

from windlass.runs import node_events
from windlass.worker import pod, pod_node, pod_reuse
from windlass.worker.pod_log import PodLog
from windlass.worker.protocol import NodeSpec, WorkerFailed, pack

SPEC = NodeSpec(0, "train.py", "python3", "/", {"MASTER_ADDR": "first.unknown.invalid"}, (), 1.0, attempt=2)


@pytest.fixture
def log() -> Iterator[PodLog]:
    """Returns a pod log whose output is not read."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    yield PodLog(descriptor)
    os.close(descriptor)


def waiting(folder: Path, log: PodLog) -> threading.Thread:
    """Starts to wait for the name of the first pod, in a thread."""
    thread = threading.Thread(target=pod_node._wait_for_name, args=(SPEC, str(folder), log), daemon=True)
    thread.start()
    return thread


def test_pod_does_not_wait_for_the_name_of_a_first_pod_that_ended(tmp_path: Path, log: PodLog) -> None:
    thread = waiting(tmp_path, log)
    passed(0.5)
    assert thread.is_alive()
    (tmp_path / f"{pod_reuse.FIRST_ENDED}2").touch()
    thread.join(100)
    assert not thread.is_alive()


def test_end_of_the_first_pod_counts_only_for_its_attempt(
    tmp_path: Path, log: PodLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_node, "NAME_SECONDS", 1.0)
    (tmp_path / f"{pod_reuse.FIRST_ENDED}1").touch()
    with pytest.raises(OSError, match=r"the name first\.unknown\.invalid is not known after 1 s"):
        pod_node._wait_for_name(SPEC, str(tmp_path), log)


def test_forks_of_other_nodes_wait_until_rank_0_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                first.listen()

        monkeypatch.setattr(time, "sleep", pause)
        pod_node._wait_for_store("127.0.0.1", first.getsockname()[1])
        assert len(pauses) == 2
        first.accept()[0].close()


@pytest.mark.parametrize("host", ["127.0.0.1", "first.unknown.invalid"])
def test_forks_start_after_a_limit_if_rank_0_does_not_listen(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_node, "STORE_SECONDS", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        pod_node._wait_for_store(host, silent.getsockname()[1])


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_unreadable_checkpoint_folder_does_not_stop_the_pod(
    tmp_path: Path, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    env = {"WINDLASS_OUTPUT_DIR": str(tmp_path / "out"), "WINDLASS_CHECKPOINT_DIR": str(tmp_path / "claim")}
    (tmp_path / "claim").mkdir()
    with failing_reads(tmp_path / "claim", number):
        pod_node.make_folders(env)
    assert "the folder of checkpoints cannot be made" in capfd.readouterr().err
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("has_late_log", [True, False])
def test_pod_failing_before_its_ranks_writes_the_reason_to_the_failure_file(tmp_path: Path, has_late_log: bool) -> None:
    (tmp_path / "out").touch()  # a file, so that no folder can be created there
    shown = tmp_path / "failure"
    pod = Pod(tmp_path, "succeeds", env={pod_node.FAILURE_FILE: str(shown)} if has_late_log else {})
    assert pod.process.wait(100) == 1
    lines = [line.removeprefix(b"[n] ") for line in pod.log.read_bytes().splitlines() if line.startswith(b"[n] ")]
    if not has_late_log:
        assert lines == []
        return
    first, *others = [found.event for line in lines if (found := node_events.parse(line)) is not None]
    message = f"FileExistsError: [Errno 17] File exists: '{tmp_path}/out'"
    assert isinstance(first, WorkerFailed)
    assert first.message == shown.read_text() == message
    assert others == [WorkerFailed(others[0].at)]  # reported by its parent


@pytest.mark.parametrize(
    ("of_image", "of_spec", "expected"),
    [("/opt/app", "OURS", "/opt/app:OURS"), ("", "OURS", "OURS"), ("/opt/app", "/job:OURS", "/job:OURS")],
)
def test_pythonpath_of_the_image_precedes_the_modules_of_windlass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_image: str, of_spec: str, expected: str
) -> None:
    ours = str(Path(pod.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", of_image)
    nodes = tmp_path / "nodes.json.gz"
    nodes.write_bytes(pack(1, {0: SPEC.replace(env={"PYTHONPATH": of_spec.replace("OURS", ours)})}))
    assert pod._read(str(nodes), 0).env["PYTHONPATH"] == expected.replace("OURS", ours)


class LatePod(pod.Pod):
    """A pod whose node reports and exits between a poll that found nothing and the search for exited processes."""

    def __init__(self, folder: Path, log: PodLog, node: subprocess.Popen[bytes]) -> None:
        super().__init__(str(folder), log, [], None)
        self._node = node.pid
        self._process = node

    def _collect(self, *, wait: bool) -> int | None:
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return super()._collect(wait=wait)


def test_report_of_a_node_that_exits_after_the_poll_is_read(tmp_path: Path, log: PodLog) -> None:
    read, write = os.pipe()
    script = f"read -r line; echo '{{}}' >&{write}"
    node = subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, pass_fds=[write])
    os.close(write)
    try:
        assert LatePod(tmp_path, log, node)._await_node(read) == (0, b"{}\n")
    finally:
        node.returncode = 0  # the pod has reaped the process
        os.close(read)
