"""See and end the warm processes of this machine: what `windlass warm` does."""

from __future__ import annotations

from typing import Any

from windlass.actions.edge import Edge


def list_warm(edge: Edge) -> list[dict[str, Any]]:
    """What is known of each warm process; `state` is `importing`, `ready`, `busy` or `refused`."""
    from windlass.engines.local.warm import WarmPool

    return WarmPool(edge.home).show()


def stop_warm(edge: Edge, name: str | None = None) -> list[str]:
    """End one warm process, or all; runs go on. Gives the names of those ended. Raises UsageError."""
    from windlass.engines.local.warm import WarmPool
    from windlass.errors import UsageError

    stopped = WarmPool(edge.home).stop(name)
    if name is not None and not stopped:
        raise UsageError(f"there is no warm process {name}", "see: windlass warm ls")
    return stopped
