"""One attempt on this machine: node workers as processes, which report events and receive signals.

All files of an attempt are in its folder, so that another supervisor can adopt it: `node-K.json` (the spec),
`node-K.events` (events), `node-K.lock` (locked while the worker runs), and the logs of the ranks.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from windlass.compat import override
from windlass.supervise.backend import Attempt, Intent, Node
from windlass.worker import cleanup, process
from windlass.worker.protocol import TRACEBACK, NodeSpec


class LocalNode(Node):
    """One node worker as a process of this machine."""

    def __init__(self, number: int, ranks: tuple[int, ...], folder: Path) -> None:
        super().__init__(number, ranks, folder)
        self.popen: subprocess.Popen[bytes] | None = None
        """Child process of the worker; None if another supervisor started the worker."""
        self.has_launcher = False
        """Whether an external launcher prints to the output of the worker."""

    @override
    def last_words(self) -> str:
        words = super().last_words()
        if self.begun and self.has_launcher:  # the worker itself has printed at most the traceback of its crash
            return words[at:] if (at := words.find(TRACEBACK)) >= 0 else ""
        return words

    def lives(self) -> bool:
        """Whether the worker process still exists: only the worker holds the lock."""
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
        """Exit code of a worker that ended without reporting; −9 (SIGKILL) if another supervisor started the worker."""
        return (self.popen.returncode if self.popen is not None else None) or -signal.SIGKILL

    def set_pid(self, pid: int) -> None:
        """Stores the pid of a worker before its first report, so that the worker can be stopped until then."""
        found = process.stat(pid)
        self.pid, self.start_ticks, self.boot = pid, found.start_ticks if found else 0, process.boot_id()

    def send(self, intent: Intent) -> None:
        """Sends a signal to the worker, unless another process now has its pid."""
        if self.pid is not None and process.is_same(self.pid, self.start_ticks, self.boot):
            process.send(self.pid, intent.value)

    def sweep(self) -> None:
        """Kills processes of the node's session that outlived its worker."""
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
        """Returns the attempt whose nodes were started with these specs."""
        nodes = [LocalNode(one.node, tuple(rank.rank for rank in one.ranks), folder) for one in specs]
        for node, spec in zip(nodes, specs, strict=True):
            node.has_launcher = spec.launch is not None
        return cls(folder, nodes)

    def close(self) -> None:
        """Waits for ended workers that are children of this process, so that no zombies remain."""
        for node in self.nodes:
            if node.popen is not None:
                node.popen.wait()
            node.path("reserve").unlink(missing_ok=True)  # a killed worker leaves its reserve file

    def last_sign_of_life(self) -> float:
        """Returns the newest modification time of the attempt's files in Unix seconds; 0 without files."""
        written = [0.0]
        for path in self.folder.glob("*.*"):
            if path.suffix in (".events", ".log", ".idx", ".json"):
                with contextlib.suppress(OSError):
                    written.append(path.stat().st_mtime)
        return max(written)
