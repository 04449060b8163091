"""Reserves the rendezvous port of an attempt, so that two runs never get the same one."""

from __future__ import annotations

import socket

from windlass.errors import EngineError


def reserve(fixed: int | None) -> socket.socket:
    """Returns a socket that is bound but does not listen, so that the kernel assigns its port to no other process.

    The rank that hosts the store sets SO_REUSEADDR, as torch's TCPStore does, so that it can bind the same port.
    Programs that bind without this option cannot, and the kernel does not choose the port. Closing the socket instead
    would leave a moment in which another run could get the port.

    Raises EngineError if the `fixed` port is in use.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(("0.0.0.0", fixed or 0))  # bound but not listening: connections are refused
    except OSError as error:
        holder.close()
        hint = "leave local.port out: a free one is reserved"
        raise EngineError(f"port {fixed} cannot be reserved ({error.strerror})", hint) from error
    return holder
