"""What a row of `faults.py` is, and what its acts do to a run: kill, freeze, take a port, fill a disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.ports import quiet_port
from tests.helpers.until import passed, until

from windlass.plan.plan import Plan
from windlass.runs.logs import LogLine
from windlass.runs.record import Status


@dataclass
class Scene:
    """Where a row plays: what it may touch before the run, and while it runs."""

    folder: Path
    plan: Plan | None = None
    status: Callable[[], Status] | None = None
    stop: Callable[[], None] | None = None
    hung: Callable[[float, float], set[int]] = lambda since, after: set()
    """The ranks whose stacks were taken after some time, in a silence since some time at least, in unix seconds."""
    lines: Callable[[], list[LogLine]] = list
    """What the ranks have printed."""
    run_dir: Path = Path()

    def pid(self, rank: int) -> int:
        """Of a rank, whose log may have been read before the record of its start was written."""
        assert self.status is not None
        status = self.status
        (pid,) = until(
            lambda: [state.pid for state in status().ranks if state.rank == rank and state.pid],
            f"no process of rank {rank} is known",
        )
        return pid

    def node_pid(self, node: int) -> int:
        import json

        line = (self.run_dir / "attempt-1" / f"node-{node}.events").read_text().splitlines()[0]
        return int(json.loads(line)["pid"])

    def log(self) -> str:
        return "\n".join(line.text for line in self.lines())

    def wait_for(self, text: str, times: int = 1, seconds: float = 100.0) -> None:
        until(lambda: self.log().count(text) >= times, lambda: f"no '{text}' in:\n{self.log()}", seconds)


Act = Callable[[Scene], None]
Around = Callable[[Scene], "contextlib.AbstractContextManager[None]"]


@dataclass(frozen=True)
class Fault:
    """One row."""

    name: str
    """What is wrong, in words of a user."""
    script: str
    verdict: str
    """The code that is expected."""
    rank: int | None = None
    words: tuple[str, ...] = ()
    """What summary, evidence or fix must say."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its job; `{folder}` is the folder of the row."""
    files: Mapping[str, str] = field(default_factory=dict)
    needs: Callable[[], str] = str
    """Why it cannot be injected here; empty where it can."""
    between: Act | None = None
    """Done between plan and start."""
    act: Act | None = None
    """Done while it runs."""
    around: Around | None = None
    """What the world is like meanwhile."""
    wrap: tuple[str, ...] = ()
    """A command in front of `windlass run`."""
    slow: bool = False
    """More than two seconds."""


def not_root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def no_mounts() -> str:
    if not_root() or not shutil.which("unshare"):
        return "needs root and unshare"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "may not make a mount namespace"


def memory_group() -> Path | None:
    """A folder in which a memory control group may be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            for folder in (Path(f"/sys/fs/cgroup/memory{path}"), Path("/sys/fs/cgroup/memory")):
                if os.access(folder, os.W_OK):
                    return folder
    root = Path("/sys/fs/cgroup")
    handed_down = root / "cgroup.subtree_control"
    if handed_down.exists() and "memory" in handed_down.read_text().split() and os.access(root, os.W_OK):
        return root
    return None


def no_memory_group() -> str:
    return "" if memory_group() is not None and os.geteuid() == 0 else "may not make a memory control group"


def no_torch() -> str:
    import importlib.util

    return "" if importlib.util.find_spec("torch") else "needs torch"


def has_gpu() -> str:
    return "there is a GPU" if Path("/proc/driver/nvidia").exists() else ""


def no_gpu() -> str:
    return "" if has_gpu() else "there is no GPU"


def has_module(name: str) -> Callable[[], str]:
    import importlib.util

    return lambda: f"{name} is installed" if importlib.util.find_spec(name) else ""


# -- acts -------------------------------------------------------------------------------------------------------------


def send(number: int, rank: int) -> Act:
    def act(scene: Scene) -> None:
        scene.wait_for("ready")
        os.kill(scene.pid(rank), number)

    return act


def kill_node(scene: Scene) -> None:
    scene.wait_for("ready", 2)
    os.kill(scene.node_pid(1), signal.SIGKILL)


def stop(scene: Scene) -> None:
    scene.wait_for("ready")
    assert scene.stop is not None
    scene.stop()


def stop_at_hang(scene: Scene, after: float = 0.0) -> None:
    """A person who waits until the stacks of both ranks, taken after this time, are in the record, and stops it."""
    scene.wait_for("ready", 2)
    # Not those of a start that is silent for long; they may be recorded only now.
    ready_at = max(line.time_ns for line in scene.lines() if line.text == "ready") / 1e9
    with contextlib.suppress(AssertionError):  # what is printed while stacks are taken of a slow start ends no silence
        until(lambda: len(scene.hung(ready_at - 0.5, after)) == 2, seconds=20)
    stop(scene)


def kill_everything(scene: Scene) -> None:
    scene.wait_for("ready")
    node, supervisor, rank = (
        scene.node_pid(0),
        int((scene.run_dir / "supervisor.pid").read_text().split()[0]),
        scene.pid(0),
    )
    for pid in (supervisor, node, rank):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_supervisor(scene: Scene) -> None:
    scene.wait_for("ready")
    os.kill(int((scene.run_dir / "supervisor.pid").read_text().split()[0]), signal.SIGTERM)


def freeze(scene: Scene) -> None:
    scene.wait_for("ready", 2)
    passed(0.2)
    os.kill(scene.pid(1), signal.SIGSTOP)
    stop_at_hang(scene, time.time())


@contextlib.contextmanager
def port_held(scene: Scene) -> Iterator[None]:
    """Another program listens on the port that the job has named: after the plan was made."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("0.0.0.0", FIXED_PORT))
        holder.listen()
        yield


FIXED_PORT, SHARED_PORT = quiet_port(), quiet_port()


@contextlib.contextmanager
def small_disk(scene: Scene) -> Iterator[None]:
    """The folder of results is a disk of 1 MB."""
    folder = scene.folder / "results"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def removed_group(scene: Scene) -> Iterator[None]:
    parent = memory_group()
    assert parent is not None
    group = parent / f"windlass-why-{os.getpid()}"
    os.environ["WHY_GROUP"] = str(group)
    try:
        yield
    finally:
        del os.environ["WHY_GROUP"]
        with contextlib.suppress(OSError):
            group.rmdir()


def remove_interpreter(scene: Scene) -> None:
    (scene.folder / "env" / "bin" / "python").unlink()


def remove_set(scene: Scene) -> None:
    shutil.rmtree(scene.folder / "set")


def replace_store(scene: Scene) -> None:
    (scene.folder / "store").write_text("a file")
