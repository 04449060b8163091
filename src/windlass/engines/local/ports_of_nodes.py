"""Connects to ports of the nodes of a run on this machine, also of nodes in separate networks."""

from __future__ import annotations

import ctypes
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from windlass.errors import EngineError
from windlass.worker.netns import CLONE_NEWNET, call

CONNECT_SECONDS: Final = 5.0


def open_port(namespace: str | None, node: int, port: int) -> socket.socket:
    """Connects to a port on loopback, in the network namespace with this path if the node has one. Raises
    EngineError.
    """
    try:
        if namespace is None:
            return _connected(port)
        with ThreadPoolExecutor(1) as pool:  # a thread of its own, because it stays in the namespace
            return pool.submit(_connected_in, namespace, port).result()
    except OSError as error:
        raise EngineError(
            f"node {node} cannot be reached at port {port}: {error.strerror or error}",
            "does its program listen on 127.0.0.1, or on all addresses?",
        ) from error


def _connected(port: int) -> socket.socket:
    found = socket.create_connection(("localhost", port), CONNECT_SECONDS)
    found.settimeout(None)
    return found


def _connected_in(namespace: str, port: int) -> socket.socket:
    with open(namespace) as file:
        call("setns", ctypes.c_int(file.fileno()), ctypes.c_int(CLONE_NEWNET), what="enter the network of the node")
    return _connected(port)
