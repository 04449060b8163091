"""Sends heartbeats to the other nodes of an attempt, and reports nodes whose heartbeats do not arrive.

A lost link resets no connection, so a rank would wait for its peer until the timeout of the collective, 30 minutes by
default. Therefore every node sends a datagram to every other node twice a second. A node that sends none for some
seconds is reported as unreachable. The supervisor receives the reports of all nodes and decides which nodes are lost.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable

from windlass.worker.protocol import HeartbeatSpec

MAX_BYTES = 512


class Heartbeat:
    """Heartbeats of one node. Call `turn` whenever the socket is readable or a heartbeat is due."""

    def __init__(self, spec: HeartbeatSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """Binds a socket to the node's own address. Raises OSError."""
        self._clock = clock
        self._interval: float = spec.interval_seconds
        self._patience: float = spec.patience_seconds
        self._peers = {int(node): (address, spec.port) for node, address in spec.peers.items()}
        self._id = spec.id
        self._beat = json.dumps({"id": self._id, "node": spec.node}).encode()
        self._next = now = clock()
        self._until = dict.fromkeys(self._peers, now + spec.start_patience_seconds)
        self.silent: tuple[int, ...] = ()
        """Nodes whose last heartbeat is too old."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            self.socket.bind((spec.address, spec.port))
        except OSError:
            self.socket.close()
            raise

    def due(self) -> float:
        """Returns the seconds until the next call of `turn` is due."""
        return max(0.0, self._next - self._clock())

    def turn(self) -> bool:
        """Receives heartbeats, and sends heartbeats to all peers if due. Returns whether `silent` has changed."""
        self._receive()
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._interval
        for address in self._peers.values():
            with contextlib.suppress(OSError):  # if the link is down, other nodes report this node
                self.socket.sendto(self._beat, address)
        silent = tuple(sorted(node for node, until in self._until.items() if now > until))
        changed, self.silent = silent != self.silent, silent
        return changed

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def _receive(self) -> None:
        while True:
            try:
                data, (address, _port) = self.socket.recvfrom(MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                continue  # an error of an earlier send, which the kernel reports only once
            node = self._sender(data)
            if node is not None and self._peers[node][0] == address:
                self._until[node] = self._clock() + self._patience

    def _sender(self, data: bytes) -> int | None:
        """Returns the number of the node that sent a datagram; None if the datagram is no heartbeat of this attempt."""
        try:
            beat = json.loads(data)
            node = beat["node"] if beat["id"] == self._id else None
        except (ValueError, TypeError, KeyError):
            return None
        return node if isinstance(node, int) and node in self._peers else None
