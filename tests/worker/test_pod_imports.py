"""The main process of a pod, run as a process: it imports once for the ranks of all attempts, and spares wait."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.worker.pod_process import Pod

from windlass.worker import pod_reuse, process

MODULE = """
import os, pathlib, sys
print("imported by", os.getpid(), file=sys.stderr)
with open(pathlib.Path(__file__).with_name("imports"), "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
STARTS_A_THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
WAITS = "import time\nwhile not pathlib.Path(__file__).with_name('go').exists(): time.sleep(0.01)"


def pod_that_imports(folder: Path, how: str, more: str = "", place: int = 0) -> Pod:
    """Starts a pod whose ranks import a module from a folder of installed packages."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "ahead.py").write_text(MODULE + more)
    return Pod(folder, how, warm=("ahead",), env={"PYTHONPATH": str(packages)}, place=place)


def imports(one: Pod) -> list[int]:
    """Returns the processes that have imported the module."""
    path = one.work / "packages" / "imports"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def starts(one: Pod) -> list[str]:
    """Returns how the ranks of each attempt were started."""
    return [how for line in one.text().splitlines() for how in ("cold", "warm") if f'"start": "{how}"' in line]


def test_ranks_of_every_attempt_are_forks_of_a_process_that_imports_once(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := pod_that_imports(tmp_path, "fails"))
    one.wait_for("[a] over")
    assert one.order(2, "fails") == pod_reuse.TAKEN
    until(lambda: one.text().count("[a] over") == 2)
    assert one.order(3, "succeeds") == pod_reuse.TAKEN
    assert one.wait() == 0
    assert starts(one) == ["warm"] * 3
    assert imports(one) == [one.process.pid]
    assert one.text().splitlines()[0] == f"[w] imported by {one.process.pid}"


def test_pod_restarts_without_imports_if_forks_are_unsafe(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := pod_that_imports(tmp_path, "fails", STARTS_A_THREAD))
    one.wait_for("[a] over")
    assert len(list(Path(f"/proc/{one.process.pid}/task").iterdir())) == 1
    assert one.order(2, "succeeds") == pod_reuse.TAKEN
    assert one.wait() == 0
    assert starts(one) == ["cold"] * 2
    assert imports(one) == [one.process.pid]


@pytest.mark.parametrize("is_of_supervisor", [False, True])
def test_pod_signalled_during_its_imports_starts_no_rank(
    tmp_path: Path, pods: list[Pod], is_of_supervisor: bool
) -> None:
    pods.append(one := pod_that_imports(tmp_path, "succeeds", WAITS))
    until(lambda: imports(one))
    if is_of_supervisor:
        one.signal_as_supervisor(1)
    else:
        one.process.send_signal(signal.SIGTERM)
    (tmp_path / "packages" / "go").touch()
    assert one.wait() == 128 + signal.SIGTERM
    assert "[0]" not in one.text()


def test_pod_exits_with_137_if_its_node_is_killed(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "sleeps"))
    one.wait_for("[0] attempt 1")
    [node] = process.children(one.process.pid)
    [rank] = process.children(node)
    process.send(node, signal.SIGKILL)
    assert one.wait() == 128 + signal.SIGKILL
    assert "[w] the process of the node was killed by SIGKILL" in one.text()
    until(lambda: process.stat(rank) is None)


def test_pod_without_a_place_waits_as_a_spare(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := pod_that_imports(tmp_path, "fails", place=1))
    one.wait_for("[w] spare pod")
    assert one.order(2, "fails") == pod_reuse.TAKEN  # while the pod may still import
    one.wait_for("[a] over")
    assert one.order(3, "succeeds") == pod_reuse.TAKEN
    assert one.wait() == 0
    assert starts(one) == ["warm"] * 2
    assert "[0] attempt 3" in one.text()
    assert "attempt 1" not in one.text()


def test_unused_spare_exits_with_0(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := Pod(tmp_path, "fails", place=1))
    one.wait_for("[w] spare pod")
    until(lambda: (tmp_path / pod_reuse.WAITING).exists())
    assert pod_reuse.leave(str(tmp_path), one.process.pid) == pod_reuse.TAKEN
    assert one.wait() == 0


def test_a_spare_whose_machine_shuts_down_ends(tmp_path: Path, pods: list[Pod]) -> None:
    pods.append(one := pod_that_imports(tmp_path, "fails", place=1))
    until(lambda: (tmp_path / pod_reuse.WAITING).exists())
    one.process.send_signal(signal.SIGTERM)
    assert one.wait() == 0
    assert "[n]" not in one.text()
