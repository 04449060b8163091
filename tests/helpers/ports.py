"""Ports that stay free between the moment when a test looks for one and the moment when it uses it."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def quiet_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A free port below those that the kernel gives to a program that asks for any, as other tests do all the time."""
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(10_000, lowest_given), 100):
        with socket.socket(socket.AF_INET, kind) as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise AssertionError("no port is free")
