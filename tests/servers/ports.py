"""The port on which a server listens that was started with port 0, as the kernel knows it."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"
"""State of a socket in /proc/net/tcp."""


def port_of(popen: subprocess.Popen[bytes]) -> int:
    """The port on which a process listens; 0 as long as there is none. Raises AssertionError where it has ended."""
    assert popen.poll() is None, f"the server ended with {popen.returncode}: {popen.args!r}"
    sockets = set()
    for descriptor in Path(f"/proc/{popen.pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(str(descriptor.readlink()))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _LISTENS and f"socket:[{words[9]}]" in sockets:
            return int(words[1].rpartition(":")[2], 16)
    return 0
