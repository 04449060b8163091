"""One attempt on this machine: starts node workers as processes, reads their events, signals them.

Everything about an attempt is in its folder, so that a second supervisor can adopt it: `node-K.json` (the spec),
`node-K.events` (its events), `node-K.lock` (held while it lives), the logs of its ranks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import windlass.worker
from windlass.engines.local.warm_pool import Refused, WarmPool
from windlass.runs.stop_request import read_stop_request
from windlass.supervise.backend import Attempt, Intent, Node
from windlass.worker import cleanup, process
from windlass.worker.protocol import NodeSpec

WORKER = Path(windlass.worker.__file__).with_name("__main__.py")


class LocalNode(Node):
    """One node worker."""

    def __init__(self, number: int, ranks: tuple[int, ...], folder: Path) -> None:
        super().__init__(number, ranks, folder)
        self.popen: subprocess.Popen[bytes] | None = None
        """The worker as our child; None for one that another supervisor started."""

    def lives(self) -> bool:
        """Whether the worker's process still exists: only it holds the lock."""
        if self.popen is not None and self.popen.poll() is not None:
            return False
        return process.is_locked(str(self.path("lock")))

    def has_reported(self) -> bool:
        """Whether the worker has written any event."""
        with contextlib.suppress(FileNotFoundError):
            return self.path("events").stat().st_size > 0
        return False

    @property
    def exit_code(self) -> int:
        """How a worker without a report ended: killed, unless its own exit code shows otherwise."""
        return (self.popen.returncode if self.popen is not None else None) or -signal.SIGKILL

    def know(self, pid: int) -> None:
        """Take note of a worker before it reports: a stop may have to reach it first."""
        found = process.stat(pid)
        self.pid, self.start_ticks, self.boot = pid, found.start_ticks if found else 0, process.boot_id()

    def send(self, intent: Intent) -> None:
        """Signal the worker, if it is still the process that it was."""
        if self.pid is not None and process.is_same(self.pid, self.start_ticks, self.boot):
            process.send(self.pid, intent.value)

    def sweep(self) -> None:
        """SIGKILL what of the node's session outlived its worker."""
        if self.pid is None or (self.boot and self.boot != process.boot_id()):
            return
        leader = process.stat(self.pid)
        if leader is None or leader.start_ticks == self.start_ticks:
            process.kill_session(self.pid)
            cleanup.remove(str(self.path("leftovers")))


class LocalAttempt(Attempt):
    """All node workers of one attempt."""

    nodes: tuple[LocalNode, ...]

    @classmethod
    def of(cls, folder: Path, specs: Sequence[NodeSpec]) -> Self:
        """The attempt whose nodes were started with these specs."""
        return cls(folder, [LocalNode(one.node, tuple(rank.rank for rank in one.ranks), folder) for one in specs])

    def close(self) -> None:
        """Collect the workers that are our children."""
        for node in self.nodes:
            if node.popen is not None:
                node.popen.wait()
            node.path("reserve").unlink(missing_ok=True)  # of a worker that was killed

    def last_sign_of_life(self) -> float:
        """When any of its files was last written, in unix seconds; 0 where there is none."""
        written = [0.0]
        for path in self.folder.glob("*.*"):
            if path.suffix in (".events", ".log", ".idx", ".json"):
                with contextlib.suppress(OSError):
                    written.append(path.stat().st_mtime)
        return max(written)


def start_attempt(
    folder: Path,
    specs: Sequence[NodeSpec],
    held: Sequence[socket.socket],
    wake: int,
    pool: WarmPool,
    slots: int | None = None,
) -> LocalAttempt:
    """Write the specs and start the workers; each writes a byte to `wake` whenever it reports something.

    `held` are the sockets that hold the ports at which ranks meet, `slots` the descriptor that holds the slots of the
    run, which every worker keeps. Workers whose spec names modules to
    have warm are forked from `pool` where that is safe. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    specs = _resumed(specs)
    nodes = LocalAttempt.of(folder, specs).nodes
    refusals: dict[str, None] = {}
    for node, spec in zip(nodes, specs, strict=True):
        spec.write()
        # The ports outlive a supervisor that is killed: the first node holds them too.
        kept = [one.fileno() for one in held] if node is nodes[0] else []
        kept += [] if slots is None else [slots]
        if refused := _start_worker(node, spec, [wake, *kept], pool):
            refusals[f"cold start: {refused}"] = None
    return LocalAttempt(folder, nodes, tuple(refusals))


def first_start(run_dir: Path) -> float:
    """When the run started its first node, in unix seconds; now, where it has started none."""
    specs = run_dir.glob("attempt-*/node-*.json")
    return min((path.stat().st_mtime for path in specs), default=time.time())


def _resumed(specs: Sequence[NodeSpec]) -> list[NodeSpec]:
    """The specs with the arguments that make a script resume which saves its own checkpoints. Raises OSError."""
    if specs[0].resume is None:
        return list(specs)
    from windlass.worker import resume  # its imports take as long as those of the rest of this process

    try:
        return resume.add_resume_arguments(specs)
    except ValueError as error:
        raise OSError(str(error)) from error
    except (ArithmeticError, LookupError, RuntimeError, TypeError) as error:  # a defect: the run fails, and is not lost
        raise OSError(f"checkpoint.find: internal error: {type(error).__name__}: {error}") from error


def _start_worker(node: LocalNode, spec: NodeSpec, kept: Sequence[int], pool: WarmPool) -> str:
    """Start one worker, which holds the descriptors of `kept`; returns why it could not be warm, if that was
    requested."""
    lock = os.open(node.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    out = os.open(node.path("out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer = _fork_worker(node, spec, out, [*kept, lock], pool) if spec.warm and not pool.is_off else None
        if isinstance(answer, int):
            node.know(answer)
            return ""
        # -I -S: the worker needs the standard library alone, and must not import what the user has installed.
        command = [spec.worker_python, "-I", "-S", str(WORKER), str(node.path("json")), str(kept[0])]
        node.popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, pass_fds=[*kept, lock]
        )
        node.know(node.popen.pid)
        return answer.why if answer is not None else ""
    finally:
        os.close(lock)  # the worker holds it on
        os.close(out)


def _fork_worker(node: LocalNode, spec: NodeSpec, out: int, kept: Sequence[int], pool: WarmPool) -> int | Refused:
    return pool.fork(
        python=spec.worker_python,
        modules=spec.warm,
        script=spec.script,
        spec=node.path("json"),
        env={**os.environ, **spec.env},
        output=out,
        keep=kept,
        gave_up=lambda: read_stop_request(node.folder.parent) is not None,
    )
