"""One attempt on this machine: its node workers as processes, whose events are read and which are signalled.

Everything about an attempt is in its folder, so that a second supervisor can adopt it: `node-K.json` (the spec),
`node-K.events` (its events), `node-K.lock` (held while it lives), the logs of its ranks.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from windlass.supervise.backend import Attempt, Intent, Node
from windlass.worker import cleanup, process
from windlass.worker.protocol import NodeSpec


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
