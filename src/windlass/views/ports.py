"""Ports of runs that are forwarded to this machine: output of `windlass port-forward`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForwardedPort:
    """A port of a rank that `port-forward` makes reachable."""

    id: str
    rank: int
    port: int
    """Port on which the rank listens."""
    address: str
    """Address on this machine, such as `127.0.0.1:6006`."""
