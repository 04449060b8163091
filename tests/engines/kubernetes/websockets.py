"""Server side of a WebSocket on loopback, as the API server and kubelets speak it for port-forward."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from tests.engines.kubernetes.wire import Server

BINARY, CLOSE = 2, 8


class WebSocket:
    """Accepted connection of one client."""

    def __init__(self, server: Server, connection: Any, request: str = "") -> None:
        """Accepts a request, which is read unless it is given."""
        request = request or server.requested(connection)
        self.path = request.split(" ")[1]
        key = next(line[19:] for line in request.split("\r\n") if line.startswith("Sec-WebSocket-Key: "))
        digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        accept = base64.b64encode(digest).decode()
        head = [
            "HTTP/1.1 101 X",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept}",
            "",
            "",
        ]
        connection.sendall("\r\n".join(head).encode())
        self._connection = connection

    def send(self, data: bytes, kind: int = BINARY) -> None:
        size = len(data)
        length = bytes([size]) if size < 126 else b"\x7f" + size.to_bytes(8, "big")
        self._connection.sendall(bytes([0x80 | kind]) + length + data)

    def receive(self) -> bytes | None:
        """Returns the next message; None at the end of the connection, or for a close message."""
        try:
            kind, length = self._exactly(2)
            size = length & 0x7F
            size = int.from_bytes(self._exactly({126: 2, 127: 8}[size]), "big") if size > 125 else size
            mask = self._exactly(4)
            data = self._exactly(size)
        except EOFError:
            return None
        whole = int.from_bytes(mask * (size // 4 + 1), "big") >> 8 * (4 - size % 4)
        data = (int.from_bytes(data, "big") ^ whole).to_bytes(size, "big")
        return None if kind & 0xF == CLOSE else data

    def _exactly(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            if not (piece := self._connection.recv(size - len(pieces))):
                raise EOFError
            pieces += piece
        return bytes(pieces)
