"""Reserves the rendezvous port of an attempt, so that two runs never get the same one."""

from __future__ import annotations

import socket

from windlass.errors import EngineError


def reserve(fixed: int | None) -> socket.socket:
    """A socket that is bound and does not listen: the kernel assigns its port to no other meanwhile.

    The rank that hosts the store sets SO_REUSEADDR (as torch's TCPStore does), so it may bind the same port; the
    kernel's own choice, and any program that binds without that option, cannot. Picking a free number and closing the
    socket again would leave a moment in which another run gets the same.

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
