"""Finds the processes that listen on TCP ports in this network namespace, after a rank found its port in use
(Linux).
"""

from __future__ import annotations

import os
import re

from windlass.worker import process
from windlass.worker.protocol import Listener

IN_USE = re.compile(r"EADDRINUSE|[Aa]ddress already in use|\[Errno 98\]|Binding port \d+ failed")
"""Matches messages of programs that found a port in use."""
MAX_LISTENERS = 64
_LISTENS = "0A"


def listeners(own: set[int]) -> list[Listener]:
    """Returns the listening processes. Processes in the process groups `own` come first. The process id of other users'
    processes is unknown, because their descriptors cannot be read.
    """
    ports = _listening()
    if not ports:
        return []
    found = []
    seen: set[str] = set()
    for line in process.all_processes():
        for inode in _sockets(line.pid) & ports.keys():
            seen.add(inode)
            name = process.read_text(f"/proc/{line.pid}/comm").strip()
            found.append(Listener(ports[inode], line.pid, line.group, name))
    found += [Listener(port) for inode, port in ports.items() if inode not in seen]
    return sorted(found, key=lambda one: (one.group not in own, one.port))[:MAX_LISTENERS]


def _listening() -> dict[str, int]:
    """Returns the ports of listening sockets by inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}") as file:
                for line in list(file)[1:]:
                    fields = line.split()
                    if fields[3] == _LISTENS:
                        found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
        except (OSError, ValueError, IndexError):
            continue
    return found


def _sockets(pid: int) -> set[str]:
    """Returns the inodes of the sockets that a process has open; empty if its descriptors cannot be read."""
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:
        pass
    return found
