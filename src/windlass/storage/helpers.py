"""Processes beside a copy that move its small files: one interpreter makes some thousand requests a second, not more.

A helper is sent both places by its standard input, and ends with it. Each of its threads has a connection of its own,
by which it is sent some files and answers with what became of each. It adds those that it has written to the journal
itself, so that none is written again where the copy is killed before it has the answer.
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

MOST: Final = 4
FILES_ON_ONE_CORE: Final = 8000
"""From which helpers pay off, divided by the cores: each takes a tenth of a second of one to start."""
PIDS_MAX: Final = Path("/sys/fs/cgroup/pids.max")
MAX_BATCH: Final = 32
"""Files that are sent to a thread at once."""
MIN_TASKS: Final = 1024
"""A copy starts no helpers where it may have fewer threads and processes: helpers have 64 threads together."""
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
    """How many helpers a copy of so many small files has on this machine."""
    cores = num_cores()
    pays_off = cores > 1 and num_files * cores >= FILES_ON_ONE_CORE
    return min(MOST, cores) if pays_off and sys.executable and _max_tasks() >= MIN_TASKS else 0


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _max_tasks() -> float:
    """Threads and processes that this user, or this container, may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [math.inf if soft == resource.RLIM_INFINITY else soft]
    with suppress(OSError, ValueError):  # no such control group, or "max"
        limits.append(int(PIDS_MAX.read_text()))
    return min(limits)


Outcome: TypeAlias = File | StorageError
"""Of a file that was sent to a helper: as it is at the destination, or why not."""


class Told(NamedTuple):
    """One answer of a helper."""

    outcomes: list[Outcome]
    """Of the first files, up to the first throttled one."""
    cpu_seconds: float
    """That its process has taken since its last answer, by whichever thread."""


def move(source: Place, destination: Place, entry: Entry, expected: str) -> File:
    """Move a small file, unless it has another digest than is `expected`: then it is fetched, and sent, again. Raises
    StorageError.
    """
    found: list[Damaged] = []
    while len(found) < Damaged.tries:
        try:
            return _move_once(source, destination, entry, expected)
        except Damaged as error:
            found.append(error)
    raise for_good(entry, found) from found[-1]


def for_good(entry: Entry, found: Sequence[Damaged]) -> StorageError:
    """The error of a file that was damaged in all tries."""
    if len({one.message for one in found}) == 1:
        return StorageError(f"{found[0].message}, in each of {len(found)} tries")
    return StorageError(f"{entry.name} was changed on its way in each of {len(found)} tries: {found[-1].message}")


def _move_once(source: Place, destination: Place, entry: Entry, expected: str) -> File:
    data = joined(source.pieces(entry, 0, entry.size)) if entry.size else b""
    digest = combined([hashlib.sha256(data).digest()])
    check(entry, digest, expected)
    return File(entry.name, entry.size, digest, entry.version, destination.put(entry.name, data))


def check(entry: Entry, digest: str, expected: str) -> None:
    """Compare with what the source says of itself, if it does. Raises Damaged."""
    if expected and expected != digest:
        raise Damaged(f"{entry.name} is damaged at its source: it should have {expected}, and has {digest}")


class Helpers:
    """Helpers of one copy. Until they have started, and where none can be, no thread of one is idle."""

    def __init__(self, source: Place, destination: Place, journal: int, number: int, requests: int) -> None:
        """So many helpers, which may have this number of requests under way together; `journal` is its descriptor.

        Raises OSError, or RuntimeError for a thread, where so many cannot be had.
        """
        places = pickle.dumps((source, destination, journal))
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        """The first thread of each helper, then the second of each, and so on: the copy asks them in this order."""
        self._starting = threading.Thread(target=self._await_start, name="helpers")
        try:
            connections = [self._start(places, journal, -(-requests // number)) for _ in range(number)]
            self._connections += [one for of_thread in zip(*connections, strict=True) for one in of_thread]
            self._starting.start()
        except BaseException:
            self._end()
            raise

    def batch_size(self, num_files: int) -> int:
        """How many of the files that are left one thread is sent: fewer near the end, for all to end at once."""
        return max(1, min(MAX_BATCH, num_files // (2 * len(self._connections))))

    def idle(self) -> Connection | None:
        """A thread without work, to be asked for some."""
        try:
            return self._idle.get_nowait()
        except Empty:
            return None

    def ask(self, thread: Connection, files: Sequence[tuple[Entry, str]]) -> Told | None:
        """Have files moved, each unless it has another digest than is expected; None where the helper has ended."""
        try:
            thread.send(files)
            told: Told = thread.recv()
        except (EOFError, OSError):
            return None  # its threads are given no more work
        self._idle.put(thread)
        return told

    def close(self) -> None:
        """End all of them, also in the middle of a file."""
        self._end()
        self._starting.join()

    def _end(self) -> None:
        """The connections are closed with the last thread of the copy that waits for one."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            with suppress(OSError):  # it has not read what it was sent
                if process.stdin is not None:
                    process.stdin.close()

    def _start(self, places: bytes, journal: int, threads: int) -> list[Connection]:
        with ExitStack() as sockets:  # all are closed at its end but those that were detached
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
                continue  # it has ended: the others do its work
            self._idle.put(one)


def _connection(descriptor: int) -> Connection:
    from multiprocessing.connection import Connection  # 10 ms, which most copies do without

    return Connection(descriptor)


# -- in the helper ---------------------------------------------------------------------------------------------------


def serve() -> None:
    """Be a helper, until the standard input ends."""
    return_freed_blocks()
    given = sys.stdin.buffer
    descriptors = pickle.load(given)
    work = _Work(*pickle.load(given))
    for descriptor in descriptors:
        connection = _connection(descriptor)
        try:
            threading.Thread(target=work.serve, args=(connection,), daemon=True).start()
        except RuntimeError:  # no more may be started
            connection.close()
    given.read()
    os._exit(0)


class _Work:
    """What the threads of a helper do."""

    def __init__(self, source: Place, destination: Place, journal: int) -> None:
        self._source, self._destination, self._journal = source, destination, journal
        self._lock = threading.Lock()
        self._told_seconds = 0.0

    def serve(self, asked: Connection) -> None:
        """Answer what comes by one connection, up to an error that is not ours: then the copy meets it itself."""
        with asked, suppress(Exception):
            asked.send("ready")
            while True:
                files = asked.recv()
                asked.send(Told(self._outcomes(files), self._untold_seconds()))

    def _outcomes(self, files: Sequence[tuple[Entry, str]]) -> list[Outcome]:
        """See `Told`."""
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

    def _untold_seconds(self) -> float:
        """Processor time that this process has taken since its last answer."""
        with self._lock:
            now = time.process_time()
            untold, self._told_seconds = now - self._told_seconds, now
            return untold
