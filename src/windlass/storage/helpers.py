"""Processes that copy small files in parallel, because one interpreter sends only a few thousand requests per second.

A helper receives both places on standard input and exits when standard input closes. Each of its threads has a
connection on which it receives a batch of files and returns the outcome of each. The helper adds written files to the
journal itself, so that no file is written again if the copy is killed before it receives the outcome.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from windlass.errors import StorageError
from windlass.storage.digest import combined
from windlass.storage.journal import append
from windlass.storage.manifest import File
from windlass.storage.memory import return_freed_blocks
from windlass.storage.place import Damaged, Entry, Place, Throttled, joined

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MAX_HELPERS: Final = 4
FILES_ON_ONE_CORE: Final = 8000
"""Number of small files from which helpers are worthwhile on one core, divided by the number of cores. Starting a
helper takes 0.1 s of one core."""
PIDS_MAX: Final = Path("/sys/fs/cgroup/pids.max")
MAX_BATCH: Final = 32
"""Maximum number of files sent to a thread at once."""
MIN_TASKS: Final = 1024
"""A copy starts helpers only if the system allows at least this many threads and processes. All helpers together have
64 threads."""
_PROGRAM: Final = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the copy, which ends its helpers
sys.path[:] = sys.argv[1:]
try:
    from windlass.storage.helpers import serve
except ImportError:  # the package is found by other means than its path: the copy does all by itself
    sys.exit(1)
serve()
"""


def number_here(num_files: int) -> int:
    """Returns the number of helpers for this number of small files on this machine."""
    cores = num_cores()
    pays_off = cores > 1 and num_files * cores >= FILES_ON_ONE_CORE
    return min(MAX_HELPERS, cores) if pays_off and sys.executable and _max_tasks() >= MIN_TASKS else 0


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _max_tasks() -> float:
    """Returns the limit of threads and processes of this user or container."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [math.inf if soft == resource.RLIM_INFINITY else soft]
    with suppress(OSError, ValueError):  # the container has no control group, or its limit is "max"
        limits.append(int(PIDS_MAX.read_text()))
    return min(limits)


Outcome: TypeAlias = File | StorageError
"""Result for one file that was sent to a helper: its entry at the destination, or the error."""


class BatchResult(NamedTuple):
    """Response of a helper to one batch."""

    outcomes: list[Outcome]
    """Outcomes of the first files of the batch; ends with the first throttled file."""
    cpu_seconds: float
    """Processor time of all threads of the helper since its last response."""


def move(source: Place, destination: Place, entry: Entry, expected: str) -> File:
    """Copies a small file. Fetches and writes it again if its digest differs from `expected`. Raises StorageError."""
    found: list[Damaged] = []
    while len(found) < Damaged.tries:
        try:
            return _move_once(source, destination, entry, expected)
        except Damaged as error:
            found.append(error)
    raise permanently_damaged(entry, found) from found[-1]


def permanently_damaged(entry: Entry, found: Sequence[Damaged]) -> StorageError:
    """Returns the error for a file that arrived damaged in every try."""
    if len({one.message for one in found}) == 1:
        return StorageError(f"{found[0].message}, in each of {len(found)} tries")
    return StorageError(f"{entry.name}: changed on its way in each of {len(found)} tries: {found[-1].message}")


def _move_once(source: Place, destination: Place, entry: Entry, expected: str) -> File:
    data = joined(source.pieces(entry, 0, entry.size)) if entry.size else b""
    digest = combined([hashlib.sha256(data).digest()])
    check(entry, digest, expected)
    return File(entry.name, entry.size, digest, entry.version, destination.put(entry.name, data))


def check(entry: Entry, digest: str, expected: str) -> None:
    """Raises Damaged if a digest differs from the digest that the source states, if any."""
    if expected and expected != digest:
        raise Damaged(f"{entry.name}: damaged at its source: it should have {expected}, and has {digest}")


class Helpers:
    """Helper processes of one copy. No thread is idle until the helpers have started, or if helpers cannot start."""

    def __init__(self, source: Place, destination: Place, journal: int, number: int, requests: int) -> None:
        """Starts `number` helpers with `requests` concurrent requests in total; `journal` is a file descriptor.

        Raises OSError or RuntimeError if processes or threads cannot be started.
        """
        places = pickle.dumps((source, destination, journal))
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        """Connections in the order of use: the first thread of each helper, then the second of each, and so on."""
        self._starting = threading.Thread(target=self._await_start, name="helpers")
        try:
            connections = [self._start(places, journal, -(-requests // number)) for _ in range(number)]
            self._connections += [one for of_thread in zip(*connections, strict=True) for one in of_thread]
            self._starting.start()
        except BaseException:
            self._end()
            raise

    def batch_size(self, num_files: int) -> int:
        """Returns the batch size for the remaining files. Batches shrink near the end so that all threads finish
        together.
        """
        return max(1, min(MAX_BATCH, num_files // (2 * len(self._connections))))

    def idle(self) -> Connection | None:
        """Returns the connection of an idle thread, or None."""
        try:
            return self._idle.get_nowait()
        except Empty:
            return None

    def ask(self, thread: Connection, files: Sequence[tuple[Entry, str]]) -> BatchResult | None:
        """Sends a batch of files, each with its expected digest, to a thread. Returns None if the helper has exited."""
        try:
            thread.send(files)
            result: BatchResult = thread.recv()
        except (EOFError, OSError):
            return None  # a helper that has exited is no longer used
        self._idle.put(thread)
        return result

    def close(self) -> None:
        """Kills all helpers, even in the middle of a file."""
        self._end()
        self._starting.join()

    def _end(self) -> None:
        """Kills the processes. The last thread that waits on a connection closes it."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            with suppress(OSError):  # closing fails if the helper was killed before it read its input
                if process.stdin is not None:
                    process.stdin.close()

    def _start(self, places: bytes, journal: int, threads: int) -> list[Connection]:
        with ExitStack() as sockets:
            pairs = [[sockets.enter_context(one) for one in socket.socketpair()] for _ in range(threads)]
            theirs = [pair[1].fileno() for pair in pairs]
            path = [one for one in sys.path if isinstance(one, str) and "\0" not in one]
            command = [sys.executable, "-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}", "-c", _PROGRAM, *path]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[*theirs, journal])
            self._processes.append(process)
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(theirs) + places)
            process.stdin.flush()
            return [_connection(pair[0].detach()) for pair in pairs]

    def _await_start(self) -> None:
        for one in self._connections:
            try:
                one.recv()
            except (EOFError, OSError):
                continue
            self._idle.put(one)


def _connection(descriptor: int) -> Connection:
    from multiprocessing.connection import Connection  # the import is late because it takes 10 ms

    return Connection(descriptor)


# -- in the helper ---------------------------------------------------------------------------------------------------


def serve() -> None:
    """Runs a helper until standard input closes."""
    return_freed_blocks()
    given = sys.stdin.buffer
    descriptors = pickle.load(given)
    work = _Work(*pickle.load(given))
    for descriptor in descriptors:
        connection = _connection(descriptor)
        try:
            threading.Thread(target=work.serve, args=(connection,), daemon=True).start()
        except RuntimeError:  # the system's limit of threads is reached
            connection.close()
    given.read()
    os._exit(0)


class _Work:
    def __init__(self, source: Place, destination: Place, journal: int) -> None:
        self._source, self._destination, self._journal = source, destination, journal
        self._lock = threading.Lock()
        self._told_seconds = 0.0

    def serve(self, asked: Connection) -> None:
        """Serves one connection. Ends on an error that is not a StorageError; the copy then retries the files
        itself.
        """
        with asked, suppress(Exception):
            asked.send("ready")
            while True:
                files = asked.recv()
                asked.send(BatchResult(self._outcomes(files), self._unreported_seconds()))

    def _outcomes(self, files: Sequence[tuple[Entry, str]]) -> list[Outcome]:
        """Copies the files of a batch; ends with the first throttled file."""
        found: list[Outcome] = []
        for entry, expected in files:
            try:
                one = move(self._source, self._destination, entry, expected)
                append(self._journal, one)
                found.append(one)
            except StorageError as error:
                found.append(error)
                if isinstance(error, Throttled):
                    break
        return found

    def _unreported_seconds(self) -> float:
        """Returns the processor time that this process has used since its last response."""
        with self._lock:
            now = time.process_time()
            untold, self._told_seconds = now - self._told_seconds, now
            return untold
