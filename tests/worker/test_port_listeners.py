"""Processes that listen on a port are found, with real processes."""

from __future__ import annotations

import subprocess
import sys

from windlass.worker.port_listeners import listeners

NAMED = r"""
import ctypes, socket, sys
ctypes.CDLL(None).prctl(15, b"server gr\xc3", 0, 0, 0)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
"""The kernel truncates a process name at 15 bytes, here inside a multi-byte character."""


def test_listener_with_invalid_utf8_in_its_name_is_found() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        found = [one for one in listeners({server.pid}) if one.port == port]
        server.communicate(b"")
    assert [(one.pid, one.name) for one in found] == [(server.pid, "server gr\N{REPLACEMENT CHARACTER}")]
