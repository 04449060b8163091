"""Pairs of asyncio streams, one for each connection of a forward, and the copying between two of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import Final, NamedTuple

from windlass.engines.port_socket import PortSocket
from windlass.errors import EngineError

CHUNK_BYTES: Final = 64 << 10
RESET: Final = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that makes closing a socket reset its connection."""
HANDSHAKE_SECONDS: Final = 20.0
SHUTDOWN_SECONDS: Final = 5.0
"""Time limit in seconds for the service's part in closing a TLS connection."""
FLUSH_SECONDS: Final = 20.0
"""Seconds for which the last data of a connection may wait for a slow client."""


class Stream(NamedTuple):
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    source: socket.socket | None = None
    """Socket to the service; None for the connection of a client."""

    async def send(self, data: bytes) -> None:
        """Sends data; waits while the peer reads too slowly."""
        if data:
            self.writer.write(data)
            await self.writer.drain()

    @property
    def failure(self) -> EngineError | None:
        """Why the node could not connect to the port of the service, as far as it is known."""
        return self.source.failure if isinstance(self.source, PortSocket) else None

    async def close(self) -> None:
        """Closes the connection after its last data was sent, or after FLUSH_SECONDS."""
        self.writer.close()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self.writer.wait_closed()
        except OSError:  # includes TimeoutError
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise

    def abort(self) -> None:
        """Resets the connection, so that the peer notices that data is missing."""
        found = self.source or self.writer.get_extra_info("socket")  # a closed TLS transport no longer has its socket
        if found is not None:
            with contextlib.suppress(OSError):  # it is closed
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.writer.transport.abort()


async def open_stream(source: socket.socket, pinned: ssl.SSLContext | None, der: bytes) -> Stream:
    """Returns a stream over a connected socket; with `pinned`, over TLS to a peer that has the certificate `der`.

    Closes the socket on errors. Raises EngineError if the connection fails or the peer has another certificate.
    """
    try:
        reader, writer = await asyncio.open_connection(
            sock=source,
            ssl=pinned,
            server_hostname="" if pinned else None,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if pinned else None,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS if pinned else None,
        )
    except OSError as error:
        source.close()
        if isinstance(source, PortSocket) and source.failure is not None:
            raise source.failure from error
        raise _untrusted(error) from error
    except BaseException:
        source.close()
        raise
    stream = Stream(reader, writer, source)
    if pinned is not None and writer.get_extra_info("ssl_object").getpeercert(binary_form=True) != der:
        stream.abort()
        raise _untrusted(None)
    return stream


def _untrusted(error: OSError | None) -> EngineError:
    if error is None:
        return EngineError(
            "the server at the port of the service has another certificate: it is not the service",
            "nothing was sent to it; close the service, and start it again",
        )
    if isinstance(error, ssl.SSLError):
        return EngineError(
            f"the server at the port of the service does not use TLS as the service does: {error.reason or error}",
            "nothing was sent to it; close the service, and start it again",
        )
    return EngineError(f"the service closed the connection: {error or 'no reason reported'}", "is it still running?")


async def copy_both(one: Stream, other: Stream) -> None:
    """Copies data in both directions. A TLS connection cannot be closed in one direction only: there, the end of one
    direction ends both. An error also ends both. Raises EngineError if a node could not connect to the port.
    """
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(one, other))
            group.create_task(_copy(other, one))
    except* EOFError:
        pass
    except* OSError:
        one.abort()
        other.abort()
    for stream in (one, other):
        if stream.failure is not None:
            raise stream.failure


async def _copy(source: Stream, destination: Stream) -> None:
    while data := await source.reader.read(CHUNK_BYTES):
        await destination.send(data)
    if source.failure is not None:
        raise ConnectionError
    if not destination.writer.can_write_eof():
        raise EOFError
    destination.writer.write_eof()
