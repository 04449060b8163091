"""A Google bucket or Azure container as a store, by a separate process that imports obstore.

obstore requests hang forever in a process forked after its parent has sent one, and `DataLoader` forks. Standard
library only, Python 3.9.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from windlass.compat import override
from windlass.stores.errors import Busy, StoreError, TooLarge
from windlass.stores.gs_az import program
from windlass.stores.part_sizes import MAX_PARTS, STREAM_PART_BYTES
from windlass.stores.store import Body, Object, Page, Store

_CREDENTIALS = ("AZURE_", "GOOGLE_", "GCE_", "SSL_CERT_")
"""Prefixes of the environment variables that select credentials and endpoint."""


class Process:
    """Process that runs obstore. The process ends when this object is freed, or when its parent and all forks have
    exited.
    """

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._pid = os.getpid()
        self._local = threading.local()
        self._popen, self._control = popen, Connection(control.detach())

    @classmethod
    def start(cls) -> Process:
        """Starts the process. Raises OSError."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", str(Path(program.__file__)), json.dumps({"path": sys.path})]
        with theirs, ours:
            popen = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
            _children.append(popen)
            return cls(popen, ours)

    @property
    def connection(self) -> Connection:
        """Returns this thread's connection to a thread of the process. Raises OSError."""
        found: Connection | None = getattr(self._local, "connection", None)
        if found is None:
            ours, theirs = socket.socketpair()
            with theirs, ours:
                reduction.send_handle(self._control, theirs.fileno(), self._popen.pid)
                found = self._local.connection = Connection(ours.detach())
        return found

    def drop(self) -> None:
        """Closes the connection of this thread. A write in progress on it is abandoned."""
        self._local.connection = None

    @property
    def has_ended(self) -> bool:
        """Whether the process has exited or was killed."""
        return self._popen.poll() is not None

    def __del__(self) -> None:
        if self._pid == os.getpid():
            control = socket.socket(fileno=os.dup(self._control.fileno()))
            with control, suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # forks hold copies of the socket, so closing one copy is not enough
            self._popen.wait()
            _children.remove(self._popen)
        self._control.close()


_children: list[subprocess.Popen[bytes]] = []
"""References to the Popen objects, because Python warns if one is freed while its process runs."""
_lock = threading.Lock()
_running: tuple[object, Process] | None = None
"""The process used here, started by this process or its parent, with the settings it was started for."""


def _process() -> Process:
    """Returns the obstore process, starting one if there is none or the credentials differ. Raises OSError."""
    global _running
    wanted = os.getpid(), tuple(sorted(one for one in os.environ.items() if one[0].startswith(_CREDENTIALS)))
    with _lock:
        if _running is None or _running[0] != wanted or _running[1].has_ended:
            _running = wanted, Process.start()
        return _running[1]


def _drop() -> None:
    """Closes this thread's connection and abandons its write in progress."""
    running = _running
    if running is not None:
        running[1].drop()


def _end() -> None:
    """Ends the obstore process before the interpreter unloads modules."""
    global _running
    _running = None


def _forget() -> None:
    """Resets the module state in a fork, because another thread of the parent may hold the lock."""
    global _lock, _running
    for one in _children:
        one.returncode = 0  # a fork is not the parent of the process and must not wait for it
    _children.clear()
    _lock, _running = threading.Lock(), None


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)


class ProcessStore(Store):
    """Store that forwards requests to the obstore process. Credentials and endpoint come from the environment."""

    def __init__(self, kind: str, bucket: str) -> None:
        self.address = f"{kind}://{bucket}"
        self._kind, self._bucket = kind, bucket

    def __reduce__(self) -> Any:
        return ProcessStore, (self._kind, self._bucket)

    @override
    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        """Yields one page with all objects."""
        found: list[Page] = []

        def page() -> Page | None:
            if found:
                return None
            found.append(self._ask(prefix, "listed", prefix, delimiter))
            return [one for one in found[0] if isinstance(one, str) or one.key > after]

        return iter(page, None)

    @override
    def head_once(self, key: str) -> Object:
        found: Object = self._ask(key, "head_once", key)
        return found

    @override
    def read_once(self, one: Object, start: int, length: int) -> bytes:
        data: bytes = self._ask(one.key, "read_once", one, start, length)
        return data

    @override
    def get_once(self, key: str) -> bytes:
        data: bytes = self._ask(key, "get_once", key)
        return data

    @override
    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        return str(self._ask(key, "put_once", key, bytes(body), is_new))

    @override
    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = STREAM_PART_BYTES) -> str:
        num_bytes = 0
        try:
            self._ask(key, "begin", key, part_bytes)
            for number, part in enumerate(parts, 1):
                if number > MAX_PARTS:
                    most = STREAM_PART_BYTES * MAX_PARTS // 10**9
                    raise TooLarge(f"it has more than the {most} GB of one upload", f"{self.address}/{key}")
                self._ask(key, "piece", bytes(part))
                num_bytes += len(part)
            return self._end(key, num_bytes)
        except BaseException:
            _drop()  # closing the connection abandons the unfinished object
            raise

    def _end(self, key: str, num_bytes: int) -> str:
        try:
            return str(self._ask(key, "end"))
        except Busy:  # the object exists if only the response of an earlier try was lost
            found = self.head(key)
            if found.size != num_bytes:
                raise
            return found.version

    @override
    def remove_once(self, key: str) -> None:
        self._ask(key, "remove_once", key)

    def _ask(self, key: str, do: str, *arguments: Any) -> Any:
        """Sends a request about an object or a prefix to the process and returns its response. Raises StoreError."""
        what = f"{self.address}/{key}"
        try:
            process = _process()
        except OSError as error:
            raise Busy(f"the process that reads it cannot be started: {error.strerror}", what) from error
        try:
            process.connection.send((self._kind, self._bucket, do, arguments))
            answer = process.connection.recv()
        except (OSError, EOFError) as error:
            process.drop()
            raise Busy("the process that reads it has ended", what) from error
        except BaseException:
            process.drop()  # the next request on this connection would read the old answer
            raise
        if isinstance(answer, StoreError):
            raise type(answer)(str(answer.strerror), what, answer.hint)
        return answer
