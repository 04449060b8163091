"""Runs the job's `setup` script once on a machine, before the first ranks of its node start.

Of several nodes on one machine, one runs the script and the others wait. After the script has succeeded, later attempts
in the same pod or on the same machine do not run it again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from windlass.worker import process
from windlass.worker.capture import Capture
from windlass.worker.protocol import RankFailure
from windlass.worker.ranks import TAIL_CHARS

if TYPE_CHECKING:
    from windlass.worker.node import Node

SHELL = "bash"
POLL_SECONDS = 0.2
"""Seconds between two checks whether the other node's script has ended."""
STOPPED = 128 + signal.SIGTERM


class SetupStep:
    """Runs the `setup` script for one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rank = node.spec.ranks[0]
        base = os.path.join(os.path.dirname(os.path.abspath(node.spec.folder)), "setup")
        self._done = f"{base}.done"
        self._script = f"{base}.sh"
        self._lock = os.open(f"{base}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def run(self) -> bool:
        """Runs the script, or waits while another node runs it. Returns whether ranks can start; if not, adds a failure
        to the node.
        """
        try:
            while not self._has_turn():
                self._node.wait(POLL_SECONDS)
                if self._node.ranks.are_ending:
                    return self._stopped()
            return os.path.exists(self._done) or self._execute()
        finally:
            os.close(self._lock)  # closing the file also releases the lock

    def _has_turn(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _execute(self) -> bool:
        node, spec = self._node, self._node.spec
        read, write = os.pipe()
        try:
            # Run from a file, not with `bash -c`: a `pkill -f train.py` in the script would match the shell's command
            # line.
            script = os.open(self._script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(script, "w", encoding="utf-8") as file:
                file.write(spec.setup)
            popen = subprocess.Popen(
                [SHELL, self._script],
                cwd=spec.cwd,
                env={**os.environ, **spec.node_env()},
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                preexec_fn=process.Birth(),
            )
        except OSError as error:
            os.close(read)
            return self._failed(127, f"setup: could not start {SHELL}: {error.strerror or error}")
        finally:
            os.close(write)
        popen.returncode = 0  # Popen must not reap the process: `_wait_for` does
        capture = Capture(read, spec.folder, self._rank.rank, None, node.pipes.echo, node.reserve, node.secrets)
        node.pipes.watch(read, lambda: self._drain(capture, node.pipes.share(1)))
        code = self._wait_for(popen.pid)
        process.send_group(popen.pid, signal.SIGKILL)  # kills background processes of the script
        self._drain(capture)
        node.pipes.forget(capture.source)
        capture.close()
        if node.ranks.are_ending:
            return self._stopped()
        if code != 0:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            return self._failed(code if code > 0 else 128 - code, f"{capture.tail}\nsetup failed with {how}".lstrip())
        os.close(os.open(self._done, os.O_WRONLY | os.O_CREAT, 0o600))
        return True

    def _wait_for(self, pid: int) -> int:
        """Waits until the script has ended, and ends it if the node is stopped. Returns its exit code."""
        is_ending = False
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if self._node.ranks.are_ending:
                kill_at = self._node.ranks.kill_at
                if kill_at is None or time.monotonic() >= kill_at:
                    process.send_group(pid, signal.SIGKILL)
                elif not is_ending:
                    is_ending = True
                    process.send_group(pid, signal.SIGTERM)
            self._node.wait(POLL_SECONDS if self._node.ranks.are_ending else 5.0)  # SIGCHLD interrupts the wait

    def _drain(self, capture: Capture, most: int | None = None) -> None:
        # No events are sent: output of the script does not mean that training has begun.
        self._node.pipes.drain(capture, time.time_ns(), most)

    def _failed(self, code: int, tail: str) -> bool:
        self._node.fail(RankFailure(self._rank.rank, code, time.time(), tail[-TAIL_CHARS:]))
        return False

    def _stopped(self) -> bool:
        self._node.own_failures.append(RankFailure(self._rank.rank, STOPPED, time.time(), "", ended_by_us=True))
        return False
