"""Sends one request to one pod, over the connections of an order server."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.access.order_server import OrderServer


def call(server: OrderServer, pod: str, words: Sequence[str], seconds: float) -> int:
    """Returns the exit code of the request. Raises Unreachable."""
    [(_, answer)] = server.call_all([(pod, words)], seconds)
    if isinstance(answer, Unreachable):
        raise answer
    return answer
