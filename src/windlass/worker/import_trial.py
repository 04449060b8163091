"""Imports modules in a child process of the lowest priority, to find which of them leave it safe to fork."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Callable  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker import process
from windlass.worker.fork_safety import package_fingerprint, package_folders

LOWEST_NICENESS = 19
MAX_EXTENSIONS = 10
"""How often a trial that still computes gets the time of one more: beside a training it has little of the cores."""


class Verdicts:
    """Which parts can be imported before a fork: the file NAME.tried, for one interpreter and one list of modules.

    They hold for every environment, and until a package is installed or removed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        found = package_fingerprint(dict.fromkeys(package_folders(), (0, 0)))
        self._folders = {folder: list(about) for folder, about in found.items()}
        self.reasons: dict[str, str] = {}
        """By part: why it cannot be imported before a fork; empty where it can."""
        try:
            with open(path) as file:
                known = json.load(file)
            if known["folders"] == self._folders:
                self.reasons = {str(part): str(reason) for part, reason in known["parts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # tried anew

    def add(self, reasons: dict[str, str]) -> None:
        """Keep these too. An error of the file system means that they are found again."""
        self.reasons.update(reasons)
        try:
            new = f"{self._path}.{os.getpid()}"  # processes with other numbers of threads share the file
            with open(new, "w") as file:
                json.dump({"folders": self._folders, "parts": self.reasons}, file)
            os.replace(new, self._path)
        except OSError:
            pass

    def forget(self) -> None:
        """Remove them: one was wrong."""
        self.reasons.clear()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class Trial:
    """Imports in a child, and finds whether a fork would then equal a new interpreter."""

    def __init__(self, attempt: Callable[[], str], limit_seconds: float, keep_out: int) -> None:
        """`attempt` imports, and gives why a fork would be unsafe then. The child does not hold descriptor `keep_out`.

        SIGCHLD must not be ignored.
        """
        self._limit_seconds = limit_seconds
        self._extensions = 0
        self._began = time.monotonic()
        self._said, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(keep_out)
                process.die_with_parent()
                _lower()
                os.write(told, b"." + attempt().encode("utf-8", "replace")[:4000])
            finally:
                os._exit(0)
        os.close(told)

    def verdict(self) -> str | None:
        """Why what was imported is unsafe to fork, empty where it is safe; None while it is tried.

        Raises InterruptedError where the child was killed from outside, as it is where memory is short. Collects all
        children of this process that have ended.
        """
        status = _collect().get(self._pid)
        if status is None:
            if not self._is_late():
                return None
            self.stop()
            return f"did not finish its imports within {self._limit_seconds:g} s"
        process.kill_session(self._pid)  # what the imports have started
        with open(self._said, "rb") as file:
            said = file.read()
        if said:
            return said[1:].decode()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGTERM):
            raise InterruptedError
        return "ended while it imported"

    def stop(self) -> None:
        """End it."""
        process.kill_session(self._pid)
        os.close(self._said)

    def _is_late(self) -> bool:
        if time.monotonic() - self._began < self._limit_seconds * (1 + self._extensions):
            return False
        found = process.stat(self._pid)
        if found is not None and found.state == "R" and self._extensions < MAX_EXTENSIONS:
            self._extensions += 1
            return False
        return True


def _lower() -> None:
    """Leave the cores to the run: the lowest priority, in a session of its own, by which kernels may group."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.nice(LOWEST_NICENESS)
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(LOWEST_NICENESS))
    except OSError:
        pass  # a kernel without autogroups
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _collect() -> dict[int, int]:
    """The children that have ended, with their wait status."""
    found: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found[pid] = status
    except ChildProcessError:
        pass
    return found
