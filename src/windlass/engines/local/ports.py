"""Reserves the port where the ranks of an attempt meet, so that two runs at once can never be given the same."""

from __future__ import annotations

import socket

from windlass.errors import EngineError


def reserve(fixed: int | None) -> socket.socket:
    """A socket that is bound and does not listen: while it is open, the kernel gives its port to nobody else.

    The rank that hosts the store names the port and sets SO_REUSEADDR (as torch's TCPStore does), so it may bind beside
    us; the kernel's own choice, and any program that binds without that option, passes over it. Picking a free number
    and closing the socket again would leave a gap in which another run is given the same.

    Raises EngineError if the `fixed` port is in use.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(("0.0.0.0", fixed or 0))  # bound, never listening: nothing can connect
    except OSError as error:
        holder.close()
        hint = "leave local.port out: a free one is reserved"
        raise EngineError(f"port {fixed} cannot be reserved ({error.strerror})", hint) from error
    return holder
