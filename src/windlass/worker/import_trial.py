"""Imports modules in a child process with the lowest priority, to find which of them leave a process safe to fork."""

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
"""Maximum number of extensions of a trial that is still computing. Trials get little CPU time next to a training."""


class Verdicts:
    """Results of import trials for one interpreter and one list of modules, stored in the file NAME.tried.

    The results are valid in every environment until a package is installed or removed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        found = package_fingerprint(dict.fromkeys(package_folders(), (0, 0)))
        self._folders = {folder: list(about) for folder, about in found.items()}
        self.reasons: dict[str, str] = {}
        """Reason why each module must not be imported before a fork; empty if it may be."""
        try:
            with open(path) as file:
                known = json.load(file)
            if known["folders"] == self._folders:
                self.reasons = {str(part): str(reason) for part, reason in known["parts"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # without valid results, the trials are repeated

    def add(self, reasons: dict[str, str]) -> None:
        """Adds results and saves them. If saving fails, the trials are repeated in a later process."""
        self.reasons.update(reasons)
        try:
            new = f"{self._path}.{os.getpid()}"  # processes with different thread settings share the file
            with open(new, "w") as file:
                json.dump({"folders": self._folders, "parts": self.reasons}, file)
            os.replace(new, self._path)
        except OSError:
            pass

    def forget(self) -> None:
        """Removes all results, because a result was wrong."""
        self.reasons.clear()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class Trial:
    """Import in a child process that shows whether a fork after the import would be like a new interpreter."""

    def __init__(self, attempt: Callable[[], str], limit_seconds: float, keep_out: int) -> None:
        """Starts the child. `attempt` imports modules and returns why a fork would be unsafe. The child closes
        descriptor `keep_out`.

        SIGCHLD must not be ignored.
        """
        self._limit_seconds = limit_seconds
        self._extensions = 0
        self._began = time.monotonic()
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(keep_out)
                process.die_with_parent()
                _lower()
                os.write(writer, b"." + attempt().encode("utf-8", "replace")[:4000])
            finally:
                os._exit(0)
        os.close(writer)

    def verdict(self) -> str | None:
        """Returns why a fork would be unsafe, empty if it is safe; None while the trial runs. Reaps all children of
        this process that have ended.

        Raises InterruptedError if the child was killed by another process or the OOM killer.
        """
        status = _collect().get(self._pid)
        if status is None:
            if not self._is_late():
                return None
            self.stop()
            return f"did not finish its imports within {self._limit_seconds:g} s"
        process.kill_session(self._pid)  # kills processes that the imports have started
        with open(self._reader, "rb") as file:
            report = file.read()
        if report:
            return report[1:].decode()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGTERM):
            raise InterruptedError
        return "ended while it imported"

    def stop(self) -> None:
        """Kills the trial's processes."""
        process.kill_session(self._pid)
        os.close(self._reader)

    def _is_late(self) -> bool:
        if time.monotonic() - self._began < self._limit_seconds * (1 + self._extensions):
            return False
        found = process.stat(self._pid)
        if found is not None and found.state == "R" and self._extensions < MAX_EXTENSIONS:
            self._extensions += 1
            return False
        return True


def _lower() -> None:
    """Lowers the priority of this process. Creates a session, because kernels with autogroups schedule by session."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.nice(LOWEST_NICENESS)
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(LOWEST_NICENESS))
    except OSError:
        pass  # the kernel has no autogroups
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _collect() -> dict[int, int]:
    """Returns the wait statuses of children that have ended, by process id."""
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
