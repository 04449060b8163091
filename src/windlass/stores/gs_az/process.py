"""A bucket of Google or a container of Azure as a store, by a process that has obstore.

Requests of obstore wait for ever in a process that was forked after its parent had made one, and a `DataLoader` forks.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from windlass.stores.errors import Busy, Changed, Denied, Forbidden, Missing, MissingBucket, NoAnswer, StoreError
from windlass.stores.gs_az import program
from windlass.stores.gs_az.failure import Kind
from windlass.stores.retry import repeated
from windlass.stores.s3.answer import Body
from windlass.stores.s3.objects import MAX_PARTS, PART_BYTES, Object, parts_of
from windlass.stores.store import Store

_CREDENTIALS = ("AZURE_", "GOOGLE_", "GCE_", "SSL_CERT_")
"""What the names of variables begin with that decide who asks, and whom."""
_ERRORS: dict[Kind, Callable[[str, str], StoreError]] = {
    Kind.BUSY: Busy,
    Kind.NO_ANSWER: NoAnswer,
    Kind.MISSING: Missing,
    Kind.MISSING_BUCKET: MissingBucket,
    Kind.DENIED: Denied,
    Kind.FORBIDDEN: Forbidden,
    Kind.CHANGED: Changed,
}


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

    def listed(self, prefix: str, delimiter: str = "") -> Iterator[Object | str]:
        """See `Store`."""
        return iter(repeated(lambda: self._listed(prefix, delimiter)))

    def _listed(self, prefix: str, delimiter: str) -> list[Object | str]:
        found: list[Object | str] = []
        try:
            answer, _ = self._ask(prefix, "list", delimiter=delimiter)
            while True:
                found += [Object(*one) for one in answer["objects"]]
                found += answer["prefixes"]
                if not answer.get("more"):
                    return found
                answer, _ = self._answer(prefix, program.receive)
        except BaseException:
            _drop()  # the rest of the answer would be that of the next request
            raise

    def head(self, key: str) -> Object:
        """See `Store`."""
        return Object(*repeated(lambda: self._ask(key, "head"))[0]["object"])

    def read_once(self, one: Object, start: int, length: int) -> bytes:
        """See `Store`."""
        answer, data = self._read(one.key, start, length if length < one.size else None, one.etag)
        if one.etag.startswith('"') and answer.etag != one.etag:
            raise Changed("it was written meanwhile", f"{self.address}/{one.key}")
        if len(data) != length:
            raise Changed(f"{length} bytes were asked for, {len(data)} came", f"{self.address}/{one.key}")
        return data

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return repeated(lambda: self._read(key, 0, None, ""))[1]

    def _read(self, key: str, start: int, length: int | None, version: str) -> tuple[Object, bytes]:
        answer, data = self._ask(key, "read", start=start, length=length, version=version)
        return Object(*answer["object"]), data

    def put(self, key: str, body: Body) -> None:
        """See `Store`."""
        try:
            repeated(lambda: self._ask(key, "put", body))
        except Changed:
            # The answer to an earlier try of this request may have been lost.
            if self.get(key) != bytes(body):
                raise

    def write(self, key: str, pieces: Iterable[Body]) -> None:
        """See `Store`."""
        parts = parts_of(pieces)
        first = next(parts, b"")
        second = next(parts, None)
        if second is None:
            self.put(key, first)
            return
        try:
            self._write(key, itertools.chain((first, second), parts))
        except BaseException:
            _drop()
            raise

    def _write(self, key: str, parts: Iterable[bytes]) -> None:
        self._ask(key, "begin")
        num_bytes = 0
        for number, part in enumerate(parts, 1):
            if number > MAX_PARTS:
                most = PART_BYTES * MAX_PARTS // 10**9
                raise StoreError(errno.EFBIG, f"it has more than the {most} GB of one upload", f"{self.address}/{key}")
            self._ask(key, "piece", part)
            num_bytes += len(part)
        try:
            self._ask(key, "end")
        except Busy:  # the answer to an earlier try may have been lost: then the object is there
            if self.head(key).size != num_bytes:
                raise

    def remove(self, key: str) -> None:
        """See `Store`."""
        repeated(lambda: self._ask(key, "remove"))

    def _ask(self, key: str, do: str, payload: Body = b"", **more: Any) -> tuple[dict[str, Any], bytes]:
        """The answer to one request about an object, or a prefix. Raises StoreError."""
        header = {"do": do, "key": key, "store": [self._kind, self._bucket], **more}

        def asked(connection: Connection) -> tuple[dict[str, Any], bytes]:
            program.send(connection, header, payload)
            return program.receive(connection)

        return self._answer(key, asked)

    def _answer(
        self, key: str, ask: Callable[[Connection], tuple[dict[str, Any], bytes]]
    ) -> tuple[dict[str, Any], bytes]:
        what = f"{self.address}/{key}"
        try:
            process = _process()
        except OSError as error:
            raise Busy(f"the process that reads it cannot be started: {error.strerror}", what) from error
        try:
            answer, data = ask(process.connection)
        except (OSError, EOFError) as error:
            process.drop()
            raise Busy("the process that reads it has ended", what) from error
        except BaseException:
            process.drop()  # an answer that was not read would be that of the next request
            raise
        if failure := answer.get("failure"):
            kind, words, hint = failure
            words = f"{words}; {hint}" if hint else words
            made = _ERRORS.get(Kind(kind))
            raise StoreError(errno.EIO, words, what) if made is None else made(words, what)
        return answer, data
