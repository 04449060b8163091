"""Opens connections to ports of pods by Kubernetes' port-forward, over a WebSocket of the API server.

The channels are those of the kubelet's `cri/streaming/portforward/websocket.go`: 0 carries data, 1 an error of the
node. On each, the first two bytes are the port, little-endian. No message ends one direction alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.node_pods import running_pod
from windlass.engines.port_socket import PortSocket
from windlass.errors import EngineError

DATA, ERROR = 0, 1
CHUNK_BYTES: Final = 32 << 10
"""Largest message that API servers accept, in bytes."""
ERROR_BYTES: Final = 4 << 10
"""Bytes of an error of the node that are kept."""
REGULAR_ENDS: Final = (0, 1000)
"""Status codes of a WebSocket that ends as intended; 0 for none."""
SILENT_SECONDS: Final = 10.0
"""Seconds without data after which a connection ends whose local end sends no more. The pod cannot learn of that end
alone."""
KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Settings of TCP, in seconds and probes: an idle connection whose server is gone ends after a minute."""


def open_port(client: Client, pod: str, port: int) -> PortSocket:
    """Returns a socket whose data a thread exchanges with a port of a pod.

    The kubelet connects to the port later: if nothing listens, the socket ends with a `failure`. Raises Refused (404 if
    the pod does not exist, 403 without the right to `pods/portforward`), Unreachable, MissingExtra.
    """
    path = f"{client.path('v1', 'Pod', pod)}/portforward"
    tunnel = client.websocket(path, [("ports", str(port))])
    tunnel.settimeout(None)  # a connection may be idle
    tunnel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE:
        tunnel.sock.setsockopt(socket.IPPROTO_TCP, option, value)
    ours, inner = socket.socketpair()
    outer = PortSocket(fileno=ours.detach())
    threading.Thread(target=_Pump(tunnel, inner, outer, pod, port).run, name=f"port {port}", daemon=True).start()
    return outer


class RunPorts:
    """Ports of the pods of a run. Thread-safe."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._pods: dict[int, str] = {}

    def open(self, node: int, port: int) -> PortSocket:
        """Connects to a port of the newest pod of a node. Looks up the pod again if the API server refuses the
        connection to the pod used last. Raises EngineError.
        """
        if (known := self._pods.get(node)) is not None:
            try:
                return open_port(self._client, known, port)
            except Refused:
                self._pods.pop(node, None)
        found = str(running_pod(self._client, self._run_id, node)["metadata"]["name"])
        stream = open_port(self._client, found, port)
        self._pods[node] = found
        return stream


class _Pump:
    """Copies between a WebSocket of port-forward and one end of a socket pair."""

    def __init__(self, tunnel: Any, inner: socket.socket, outer: PortSocket, pod: str, port: int) -> None:
        import websocket  # the client has raised MissingExtra if it is not installed

        self._broken = (websocket.WebSocketException, OSError)
        self._tunnel, self._inner, self._outer = tunnel, inner, outer
        self._connection = tunnel.sock
        self._raw = socket.socket(fileno=os.dup(tunnel.fileno()))
        """The same connection, which stays open when a thread of the WebSocket closes its own."""
        self._pod, self._port = pod, port
        self._num_received = 0
        self._error = b""
        self._is_closed_here = False

    def run(self) -> None:
        """Copies until one end is closed."""
        sending = threading.Thread(target=self._send, name=f"port {self._port} output", daemon=True)
        sending.start()
        try:
            self._receive()
        except self._broken as error:
            if not self._is_closed_here:
                self._outer.failure = Unreachable(f"{self._what} was lost: {error or 'no reason reported'}", self._hint)
        if self._error:
            self._outer.failure = self._refusal()
        with contextlib.suppress(OSError):
            self._inner.shutdown(socket.SHUT_RDWR)
        self._end_tunnel()
        sending.join()
        for one in (self._inner, self._raw, self._connection):
            one.close()

    @property
    def _what(self) -> str:
        return f"the connection to port {self._port} of pod {self._pod}"

    @property
    def _hint(self) -> str:
        return "is its node healthy?"

    def _receive(self) -> None:
        """Copies data of the pod until it ends the connection. Raises OSError, websocket.WebSocketException."""
        import websocket

        awaited = {DATA: self._port.to_bytes(2, "little"), ERROR: self._port.to_bytes(2, "little")}
        while True:
            kind, frame = self._tunnel.recv_data_frame(True)
            if kind == websocket.ABNF.OPCODE_CLOSE:
                if (status := int.from_bytes(frame.data[:2], "big")) not in REGULAR_ENDS:
                    raise OSError(f"it was closed with status {status}")
                return
            if kind not in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT) or not frame.data:
                continue
            channel, data = frame.data[0], frame.data[1:]
            if (expected := awaited.get(channel)) is None:
                raise OSError(f"the server used channel {channel}, which port-forward does not have")
            if expected:
                if not data.startswith(expected[: len(data)]):
                    raise OSError("the server answers for another port")
                awaited[channel], data = expected[len(data) :], data[len(expected) :]
            if channel == ERROR:
                self._error = (self._error + data)[:ERROR_BYTES]
            elif data:
                self._num_received += len(data)
                self._inner.sendall(data)

    def _send(self) -> None:
        """Copies data of the local end until it sends no more, and then ends the connection."""
        with contextlib.suppress(*self._broken):
            while data := self._inner.recv(CHUNK_BYTES):
                self._tunnel.send_binary(bytes([DATA]) + data)
            self._wait_until_silent()
            self._is_closed_here = True
        with contextlib.suppress(*self._broken):
            self._tunnel.send_close()
        self._end_tunnel()

    def _wait_until_silent(self) -> None:
        """Returns when the local end is closed, or when the pod has sent nothing for SILENT_SECONDS."""
        poll = select.poll()
        poll.register(self._inner, 0)  # a closed end is always reported
        while True:
            before = self._num_received
            if poll.poll(SILENT_SECONDS * 1000) or before == self._num_received:
                return

    def _end_tunnel(self) -> None:
        """Ends the connection, also for a thread that waits for its data: closing it here would not wake that one."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)

    def _refusal(self) -> EngineError:
        """Returns the error that the node has reported."""
        text = " ".join(self._error.decode("utf-8", "replace").split())
        if "connection refused" in text.lower():
            return EngineError(
                f"nothing listens on port {self._port} of pod {self._pod}",
                "the program must listen on 127.0.0.1 or on all addresses of its pod",
            )
        return EngineError(f"port {self._port} of pod {self._pod} cannot be reached: {text}", self._hint)
