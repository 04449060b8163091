"""A bucket of Google or a container of Azure as a store, by a process that has obstore.

Requests of obstore wait for ever in a process that was forked after its parent had made one, and a `DataLoader` forks.
Standard library only, Python 3.9.
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

from windlass.stores.errors import Busy, StoreError, TooLarge
from windlass.stores.gs_az import program
from windlass.stores.store import MAX_PARTS, PART_BYTES, Body, Object, Page, Store

_CREDENTIALS = ("AZURE_", "GOOGLE_", "GCE_", "SSL_CERT_")
"""What the names of variables begin with that decide who asks, and whom."""


class Process:
    """A process that has obstore; it ends with this object, and with this process and its forks."""

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._pid = os.getpid()
        self._local = threading.local()
        self._popen, self._control = popen, Connection(control.detach())

    @classmethod
    def start(cls) -> Process:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", str(Path(program.__file__)), json.dumps({"path": sys.path})]
        with theirs, ours:
            popen = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
            _children.append(popen)
            return cls(popen, ours)

    @property
    def connection(self) -> Connection:
        """To a thread of it, that of this thread. Raises OSError."""
        found: Connection | None = getattr(self._local, "connection", None)
        if found is None:
            ours, theirs = socket.socketpair()
            with theirs, ours:
                reduction.send_handle(self._control, theirs.fileno(), self._popen.pid)
                found = self._local.connection = Connection(ours.detach())
        return found

    def drop(self) -> None:
        """Forget the connection of this thread: what was begun by it is given up."""
        self._local.connection = None

    @property
    def has_ended(self) -> bool:
        """Whether it was killed."""
        return self._popen.poll() is not None

    def __del__(self) -> None:
        if self._pid == os.getpid():
            control = socket.socket(fileno=os.dup(self._control.fileno()))
            with control, suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # forks have copies, which keep it open
            self._popen.wait()
            _children.remove(self._popen)
        self._control.close()


_children: list[subprocess.Popen[bytes]] = []
"""Kept, since Python warns of a process object freed while it runs."""
_lock = threading.Lock()
_running: tuple[object, Process] | None = None
"""Of this process, or of its parent."""


def _process() -> Process:
    """The process of this one, started if it has none; another one for other credentials. Raises OSError."""
    global _running
    wanted = os.getpid(), tuple(sorted(one for one in os.environ.items() if one[0].startswith(_CREDENTIALS)))
    with _lock:
        if _running is None or _running[0] != wanted or _running[1].has_ended:
            _running = wanted, Process.start()
        return _running[1]


def _drop() -> None:
    """Give up what this thread has begun."""
    running = _running
    if running is not None:
        running[1].drop()


def _end() -> None:
    """Before the interpreter takes the modules apart."""
    global _running
    _running = None


def _forget() -> None:
    """In a fork: another thread of the parent may hold the lock."""
    global _lock, _running
    for one in _children:
        one.returncode = 0  # it is none of our children
    _children.clear()
    _lock, _running = threading.Lock(), None


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)


class ProcessStore(Store):
    """By requests to the process; credentials and endpoint are of the environment."""

    def __init__(self, kind: str, bucket: str) -> None:
        self.address = f"{kind}://{bucket}"
        self._kind, self._bucket = kind, bucket

    def __reduce__(self) -> Any:
        return ProcessStore, (self._kind, self._bucket)

    def pages(self, prefix: str, delimiter: str = "", after: str = "") -> Iterator[Page]:
        """See `Store`; all objects are one page."""
        found: list[Page] = []

        def page() -> Page | None:
            if found:
                return None
            found.append(self._ask(prefix, "listed", prefix, delimiter))
            return [one for one in found[0] if isinstance(one, str) or one.key > after]

        return iter(page, None)

    def head_once(self, key: str) -> Object:
        """See `Store`."""
        found: Object = self._ask(key, "head_once", key)
        return found

    def read_once(self, one: Object, start: int, length: int) -> bytes:
        """See `Store`."""
        data: bytes = self._ask(one.key, "read_once", one, start, length)
        return data

    def get_once(self, key: str) -> bytes:
        """See `Store`."""
        data: bytes = self._ask(key, "get_once", key)
        return data

    def put_once(self, key: str, body: Body, is_new: bool = False) -> str:
        """See `Store`."""
        return str(self._ask(key, "put_once", key, bytes(body), is_new))

    def write_parts(self, key: str, parts: Iterable[Body], part_bytes: int = PART_BYTES) -> str:
        """See `Store`."""
        num_bytes = 0
        try:
            self._ask(key, "begin", key, part_bytes)
            for number, part in enumerate(parts, 1):
                if number > MAX_PARTS:
                    most = PART_BYTES * MAX_PARTS // 10**9
                    raise TooLarge(f"it has more than the {most} GB of one upload", f"{self.address}/{key}")
                self._ask(key, "piece", bytes(part))
                num_bytes += len(part)
            return self._end(key, num_bytes)
        except BaseException:
            _drop()  # what was begun is given up
            raise

    def _end(self, key: str, num_bytes: int) -> str:
        try:
            return str(self._ask(key, "end"))
        except Busy:  # the answer to an earlier try may have been lost: then the object is there
            found = self.head(key)
            if found.size != num_bytes:
                raise
            return found.version

    def remove_once(self, key: str) -> None:
        """See `Store`."""
        self._ask(key, "remove_once", key)

    def _ask(self, key: str, do: str, *arguments: Any) -> Any:
        """What the process answers to a request about an object, or a prefix. Raises StoreError."""
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
            process.drop()  # an answer that was not read would be that of the next request
            raise
        if isinstance(answer, StoreError):
            raise type(answer)(str(answer.strerror), what, answer.hint)
        return answer
