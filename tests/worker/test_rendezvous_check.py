"""Ranks that train alone are detected from outside."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.worker.rendezvous_check import MET, has_connections, looks_alone

LISTENS = "import socket, sys\nserver = socket.create_server(('127.0.0.1', 0))\n"
READY = "import sys\nprint(f'{globals().get(\"port\", 0)}', flush=True)\nsys.stdin.read()\n"


def port_of(script: str) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a process that runs these lines and waits; returns it with the port that it has set, or 0."""
    process = subprocess.Popen(
        [sys.executable, "-c", script + READY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(b"", 240)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torch_process_without_peers_looks_alone_until_it_creates_a_group(tmp_path: Path) -> None:
    base = str(tmp_path / "rank-0")
    process, _ = port_of("import torch\n")
    try:
        assert looks_alone(process.pid, base)
        Path(base + MET).touch()
        assert not looks_alone(process.pid, base)
    finally:
        end(process)
    assert not looks_alone(process.pid, str(tmp_path / "rank-1"))


def test_listening_or_connected_process_does_not_look_alone(tmp_path: Path) -> None:
    process, port = port_of(LISTENS + "port = server.getsockname()[1]\n")
    connected, _ = port_of(f"import socket\nclient = socket.create_connection(('127.0.0.1', {port}))\n")
    idle, _ = port_of("")
    try:
        assert has_connections(process.pid)
        assert has_connections(connected.pid)
        assert not has_connections(connected.pid, (port,))  # a port of the node itself
        assert not has_connections(idle.pid)
        assert not looks_alone(idle.pid, str(tmp_path / "rank-0"))  # the process does not use torch
    finally:
        for one in (idle, connected, process):
            end(one)
