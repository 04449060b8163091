"""Reserving the rendezvous port of a run."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from tests.helpers.ports import quiet_port

from windlass.engines import ports
from windlass.engines.local.facts import is_busy
from windlass.errors import EngineError


def test_fixed_port_of_another_run_is_busy() -> None:
    port = quiet_port()
    assert not is_busy(port)
    with ports.claim(port), ports.reserve(port):
        assert is_busy(port)
        with pytest.raises(EngineError, match=f"port {port} cannot be reserved \\(Address already in use\\)"):
            ports.claim(port)
    assert not is_busy(port)


def test_process_that_inherited_a_claim_keeps_it() -> None:
    port = quiet_port()
    with ports.claim(port) as claim:
        command = [sys.executable, "-c", "input()"]
        node = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[claim.fileno()])
    assert is_busy(port)
    node.communicate(b"\n")
    ports.claim(port).close()


def test_port_on_which_another_program_listens_is_busy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert is_busy(server.getsockname()[1])
