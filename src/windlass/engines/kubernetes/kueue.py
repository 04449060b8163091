"""Asks a cluster what Kueue makes of what makes the pods of an attempt."""

from __future__ import annotations

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
    elif seen is not None and seen.by.startswith(NOT_SEEN):  # for whom it had to go, others' Workloads say
        seen = queue_seen(maker, items(client, api, "Workload") or mine)
    return seen


def evicted(client: Client, maker: Json) -> QueueSeen:
    """Why what has made pods is suspended again; what is not known where nobody can be asked."""
    known = QueueSeen("evicted", "Suspended", f"{maker['kind']} {maker['metadata']['name']} was suspended",
                      queue=queue_of(maker))  # fmt: skip
    try:
        api = served(client)
        seen = eviction_seen(maker, items(client, api, "Workload") or ()) if api else None
    except EngineError:
        return known
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
