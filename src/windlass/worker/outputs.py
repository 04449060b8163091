"""Outputs of a node: computes the digest of a folder, and sends the folder from a pod to the run's supervisor.

    python -I -S outputs.py digest FOLDER                     prints files, bytes and sha256 of a folder as JSON
    python -I -S outputs.py push WORK POD ATTEMPT FOLDER      sends it to the supervisor, see `order_protocol.py`

The stream of `tarpipe.py` is sent in pieces: 4 bytes with the length of the piece, then the piece. A piece of length 0
ends the stream; a line with the SHA-256 digest of the stream follows. The supervisor responds with the same digest in a
line once it has stored all files. Standard library of Python 3.9 only.
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

if __name__ == "__main__":  # runs as a script, like `pod.py`
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker import tarpipe
from windlass.worker.boot import digest_of
from windlass.worker.output_size import entries

SILENCE_SECONDS = 60.0
"""Seconds within which the peer must accept one piece, or respond."""
EXTEND_PAUSE_SECONDS = 10.0
MAX_PIECE_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")


class PushError(Exception):
    """Raised if the stream is invalid, larger than announced, or does not match its digest."""


def digest(folder: str) -> dict[str, Any]:
    """Returns `files`, `bytes` and `sha256` of a folder. The digest is equal for equal names, contents and links.
    Raises OSError.
    """
    whole, num_files, num_bytes = hashlib.sha256(), 0, 0
    for path in entries(folder):
        full = os.path.join(folder, path)
        if os.path.islink(full):
            if tarpipe.leads_out(path.count("/"), os.readlink(full)):
                continue  # receivers do not create such links
            what = f"link {os.readlink(full)}"
        else:
            what = digest_of(full)
            num_bytes += os.path.getsize(full)
        num_files += 1
        whole.update(f"{path}\0{what}\n".encode("utf-8", "surrogateescape"))
    return {"files": num_files, "bytes": num_bytes, "sha256": whole.hexdigest()}


# -- the stream -------------------------------------------------------------------------------------------------------


class Pieces:
    """Sending side of the stream of pieces, as a writable file. Methods raise OSError."""

    def __init__(self, peer: socket.socket, sent: Callable[[], object] = lambda: None) -> None:
        """`sent` is called after each piece."""
        self._peer = peer
        self._sent = sent
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Sends data in pieces."""
        for at in range(0, len(data), MAX_PIECE_BYTES):
            piece = bytes(data[at : at + MAX_PIECE_BYTES])
            self._digest.update(piece)
            self._peer.sendall(_LENGTH.pack(len(piece)) + piece)
            self._sent()
        return len(data)

    def end(self) -> str:
        """Sends the end of the stream. Returns the digest of all data."""
        found = self._digest.hexdigest()
        self._peer.sendall(_LENGTH.pack(0) + found.encode() + b"\n")
        return found


class PieceReader:
    """Receiving side of the stream of pieces, as a readable file of at most `max_bytes`. Methods raise PushError,
    OSError.
    """

    def __init__(self, peer: socket.socket, max_bytes: int) -> None:
        self._peer = peer.makefile("rb")
        self._left = max_bytes
        self._buffer = b""
        self._is_over = False
        self._digest = hashlib.sha256()

    def close(self) -> None:
        """Closes the file; the connection stays open."""
        self._peer.close()

    def read(self, size: int = -1) -> bytes:
        """Reads at most `size` bytes; empty at the end."""
        while not self._buffer and not self._is_over:
            self._next()
        size = len(self._buffer) if size < 0 else size
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _next(self) -> None:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_PIECE_BYTES:
            raise PushError("a piece is too long")
        self._left -= length
        if self._left < 0:
            raise PushError("more was sent than was announced")
        self._is_over = length == 0
        self._buffer = self._exactly(length)
        self._digest.update(self._buffer)

    def _exactly(self, size: int) -> bytes:
        data = self._peer.read(size)
        if len(data) != size:
            raise PushError("the connection was cut")
        return data

    def verify(self) -> str:
        """Reads to the end, compares the computed digest with the one in the stream, and returns it. Raises PushError,
        OSError.
        """
        while self.read(MAX_PIECE_BYTES):
            pass
        found = self._digest.hexdigest()
        if self._exactly(len(found) + 1) != found.encode() + b"\n":
            raise PushError("its digest does not match")
        return found


# -- the programs -----------------------------------------------------------------------------------------------------


def push(work: str, pod: str, attempt: int, folder: str) -> None:
    """Sends a folder to the run's supervisor, and keeps the pod waiting until then. Raises OSError, ValueError."""
    from windlass.worker import order_client, pod_reuse
    from windlass.worker import order_protocol as protocol

    extended_at = [time.monotonic()]

    def sent() -> None:
        if time.monotonic() - extended_at[0] > EXTEND_PAUSE_SECONDS:
            extended_at[0] = time.monotonic()
            pod_reuse.hold(work)

    key = protocol.read_key(os.environ.get(order_client.KEY_FILE, order_client.DEFAULT_KEY_FILE))
    with order_client.connect(os.environ[order_client.ADDRESS]) as peer:
        connection = order_client.Connection(peer)
        connection.authenticate(key, pod, attempt, protocol.OUTPUTS)
        connection.receive()  # waits for the message that the supervisor is ready
        peer.settimeout(SILENCE_SECONDS)
        out = Pieces(peer, sent)
        tarpipe.send(folder, out)  # type: ignore[arg-type]
        expected = out.end()
        if protocol.text(connection.receive(), "kept") != expected:
            raise protocol.ProtocolError("the supervisor has stored other data")


def push_once(work: str, pod: str, attempt: int, folder: str) -> None:
    """Sends a folder like `push`, unless another process of the pod is sending it, because a request may
    arrive twice.
    """
    import fcntl

    lock = os.open(os.path.join(work, "outputs.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    push(work, pod, attempt, folder)


def main(argv: list[str]) -> int:
    """Runs the commands in the docstring of this module."""
    if argv[:1] == ["digest"]:
        print(json.dumps(digest(argv[1])), flush=True)
        return 0
    work, pod, attempt, folder = argv[1:]
    try:
        push_once(work, pod, int(attempt), folder)
    except (OSError, ValueError):
        return 1  # the supervisor repeats the request, or reports that the outputs did not arrive
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
