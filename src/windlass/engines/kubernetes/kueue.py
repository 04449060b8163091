"""Asks a cluster what Kueue makes of what makes the pods of an attempt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from windlass.diagnose.observations import QueueSeen
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.queueing import (
    GROUP,
    JOB_UID_LABEL,
    NOT_SEEN,
    WAITS,
    api_of,
    eviction_seen,
    inactive,
    queue_of,
    queue_seen,
)
from windlass.errors import EngineError

Json = Mapping[str, Any]
ANEW_SECONDS: Final = (0.5, 1.5)
"""How long is waited for the Workload of whoever made one go: Kueue may be about to make it anew."""
MOST: Final = "2000"
"""Workloads of a namespace that are read."""


def served(client: Client) -> str:
    """The API of the Kueue that is installed; empty where there is none. Raises EngineError."""
    try:
        group = client.call("GET", f"/apis/{GROUP}")
    except Refused as error:
        if error.status in (403, 404):
            return ""
        raise
    return api_of({one["groupVersion"] for one in group.get("versions", ())})


def ask(client: Client, maker: Json) -> QueueSeen | None:
    """What Kueue makes of `maker`, as far as it may be read; None where it has nothing to do with it.

    Raises EngineError.
    """
    api = served(client)
    if not api:
        return queue_seen(maker, ())
    mine = items(client, api, "Workload", f"{JOB_UID_LABEL}={maker['metadata']['uid']}") or ()
    seen = queue_seen(maker, mine)
    if seen is not None and seen.state in WAITS:  # its queue then says where, and whether somebody has stopped it
        seen = queue_seen(maker, mine, items(client, api, "LocalQueue"))
    return seen


def evicted(client: Client, maker: Json) -> QueueSeen:
    """Why what has made pods is suspended again; what is not known where nobody can be asked."""
    known = QueueSeen("evicted", "Suspended", f"{maker['kind']} {maker['metadata']['name']} was suspended",
                      queue=queue_of(maker))  # fmt: skip
    seen = None
    with contextlib.suppress(EngineError):
        api = served(client)
        for pause in (0.0, *ANEW_SECONDS) if api else ():
            time.sleep(pause)
            seen = eviction_seen(maker, items(client, api, "Workload") or ())
            if seen is None or not seen.by.startswith(NOT_SEEN):
                break
    return seen or known


def queues(client: Client) -> tuple[tuple[str, str], ...] | None:
    """LocalQueues of the namespace, each with why it admits nobody; None where they may not be listed.

    Raises EngineError.
    """
    api = served(client)
    found = items(client, api, "LocalQueue") if api else None
    return None if found is None else tuple(sorted((one["metadata"]["name"], inactive(one)) for one in found))


def items(client: Client, api: str, kind: str, selector: str = "") -> list[Any] | None:
    """Objects of the namespace; None where they may not be listed. Raises EngineError."""
    try:
        return list(client.find(api, kind, selector, limit=MOST)["items"])
    except Refused as error:
        if error.status in (403, 404):
            return None
        raise
