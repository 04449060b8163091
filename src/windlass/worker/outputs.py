"""Outputs of a node: a digest of the folder, and their way from a pod to its run's supervisor.

    python -I -S outputs.py digest FOLDER                     prints files, bytes and sha256 of a folder as JSON
    python -I -S outputs.py push WORK POD ATTEMPT FOLDER      sends it to the supervisor, see `order_protocol.py`

What is sent is the stream of `tarpipe.py`, in pieces: 4 bytes, the length of the piece, and so many bytes. A piece of
length 0 ends it; a line with the SHA-256 of the stream follows. The supervisor answers with a line of the same digest
once it has kept all files. Standard library of Python 3.9 only.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":  # as `pod.py`
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker import tarpipe
from windlass.worker.boot import digest_of
from windlass.worker.output_size import entries

SILENCE_SECONDS = 60.0
"""How long the other side may take for one piece, or for its answer."""
HOLD_PAUSE_SECONDS = 10.0
MAX_PIECE_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")


class PushError(Exception):
    """The stream is none of `push`, is larger than it may be, or does not have its digest."""


def digest(folder: str) -> dict[str, Any]:
    """`files`, `bytes` and `sha256` of a folder: equal for equal names, contents and links. Raises OSError."""
    whole, num_files, num_bytes = hashlib.sha256(), 0, 0
    for path in entries(folder):
        full = os.path.join(folder, path)
        if os.path.islink(full):
            if tarpipe.leads_out(path.count("/"), os.readlink(full)):
                continue  # no receiver makes it
            what = f"link {os.readlink(full)}"
        else:
            what = digest_of(full)
            num_bytes += os.path.getsize(full)
        num_files += 1
        whole.update(f"{path}\0{what}\n".encode("utf-8", "surrogateescape"))
    return {"files": num_files, "bytes": num_bytes, "sha256": whole.hexdigest()}


# -- the stream -------------------------------------------------------------------------------------------------------


class Pieces:
    """The stream as a file to write to. Its methods raise OSError."""

    def __init__(self, peer: socket.socket, sent: Callable[[], object] = lambda: None) -> None:
        """`sent` is called after each piece."""
        self._peer = peer
        self._sent = sent
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Send it."""
        for at in range(0, len(data), MAX_PIECE_BYTES):
            piece = bytes(data[at : at + MAX_PIECE_BYTES])
            self._digest.update(piece)
            self._peer.sendall(_LENGTH.pack(len(piece)) + piece)
            self._sent()
        return len(data)

    def end(self) -> str:
        """Send the end; gives the digest of all that was written."""
        found = self._digest.hexdigest()
        self._peer.sendall(_LENGTH.pack(0) + found.encode() + b"\n")
        return found


class PieceReader:
    """The stream as a file to read from, of at most so many bytes. Raises PushError, OSError."""

    def __init__(self, peer: socket.socket, max_bytes: int) -> None:
        self._peer = peer.makefile("rb")
        self._left = max_bytes
        self._held = b""
        self._is_over = False
        self._digest = hashlib.sha256()

    def close(self) -> None:
        """Read no more; the connection stays open."""
        self._peer.close()

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes; none at the end."""
        while not self._held and not self._is_over:
            self._next()
        size = len(self._held) if size < 0 else size
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _next(self) -> None:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_PIECE_BYTES:
            raise PushError("a piece is too long")
        self._left -= length
        if self._left < 0:
            raise PushError("more was sent than was announced")
        self._is_over = length == 0
        self._held = self._exactly(length)
        self._digest.update(self._held)

    def _exactly(self, size: int) -> bytes:
        data = self._peer.read(size)
        if len(data) != size:
            raise PushError("the connection was cut")
        return data

    def verify(self) -> str:
        """Read to the end, and compare the digest; gives it."""
        while self.read(MAX_PIECE_BYTES):
            pass
        found = self._digest.hexdigest()
        if self._exactly(len(found) + 1) != found.encode() + b"\n":
            raise PushError("its digest is another one")
        return found


# -- the programs -----------------------------------------------------------------------------------------------------


def push(work: str, pod: str, attempt: int, folder: str) -> None:
    """Send a folder to the supervisor of the run; the pod is kept alive meanwhile. Raises OSError, ValueError."""
    from windlass.worker import order_client, pod_reuse
    from windlass.worker import order_protocol as protocol

    held_at = [time.monotonic()]

    def sent() -> None:
        if time.monotonic() - held_at[0] > HOLD_PAUSE_SECONDS:
            held_at[0] = time.monotonic()
            pod_reuse.hold(work)

    key = protocol.read_key(os.environ.get(order_client.KEY_FILE, order_client.DEFAULT_KEY_FILE))
    with order_client.connect(os.environ[order_client.ADDRESS]) as peer:
        connection = order_client.Connection(peer)
        connection.authenticate(key, pod, attempt, protocol.OUTPUTS)
        connection.receive()  # the supervisor is ready
        peer.settimeout(SILENCE_SECONDS)
        out = Pieces(peer, sent)
        tarpipe.send(folder, out)  # type: ignore[arg-type]
        expected = out.end()
        if protocol.text(connection.receive(), "kept") != expected:
            raise protocol.ProtocolError("the supervisor has kept something else")


def push_alone(work: str, pod: str, attempt: int, folder: str) -> None:
    """The same, unless another process of the pod is doing that: a request may come twice."""
    import fcntl

    lock = os.open(os.path.join(work, "outputs.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    push(work, pod, attempt, folder)


def main(argv: list[str]) -> int:
    """See the module."""
    if argv[:1] == ["digest"]:
        print(json.dumps(digest(argv[1])), flush=True)
        return 0
    work, pod, attempt, folder = argv[1:]
    try:
        push_alone(work, pod, int(attempt), folder)
    except (OSError, ValueError):
        return 1  # the supervisor requests it again, or reports that it has not come
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
