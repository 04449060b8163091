"""Socket whose other end is a port on a node that has no direct connection to this machine."""

from __future__ import annotations

import socket

from windlass.errors import EngineError


class PortSocket(socket.socket):
    """Local end of a socket pair; a thread copies between its other end and a port of a node.

    The node connects to the port after this socket is returned. Therefore, a refused connection is a socket without
    data.
    """

    failure: EngineError | None = None
    """Why the connection to the port failed or broke; set before the socket ends. None for a regular end."""
