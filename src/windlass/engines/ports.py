"""Reserves the rendezvous port of an attempt, so that two runs never get the same one."""

from __future__ import annotations

import socket
import sys
import time
from typing import Final

from windlass.errors import EngineError

CLAIM_SECONDS: Final = 1.0
"""Seconds that `claim` waits for a port, which the node of an ended attempt may hold for a moment."""


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
        raise _refusal(fixed, error) from error
    return holder


def claim(port: int) -> socket.socket:
    """Returns a socket that only one run can have for a fixed port on this machine, whichever home the run is in.

    SO_REUSEADDR allows several processes to bind the port itself until one of them listens, so two runs could join one
    rendezvous. The name of the returned socket is in Linux's abstract namespace, where the kernel frees it when the
    last process that inherited the socket has ended. Waits for a node that is just ending.

    Raises EngineError if another run has the port.
    """
    claimed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    give_up = time.monotonic() + CLAIM_SECONDS
    while sys.platform == "linux":
        try:
            claimed.bind(f"\0windlass-port-{port}")
            break
        except OSError as error:
            if time.monotonic() >= give_up:
                claimed.close()
                raise _refusal(port, error) from error
            time.sleep(0.02)
    return claimed


def _refusal(port: int | None, error: OSError) -> EngineError:
    hint = "leave local.port out: a free one is reserved"
    return EngineError(f"port {port} cannot be reserved ({error.strerror})", hint)
