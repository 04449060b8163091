"""Reads Kueue's state of the owner object of an attempt."""

from __future__ import annotations

from typing import Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.optional import items, served
from windlass.engines.kubernetes.objects.observations import QueueStatus
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.reading.admission import (
    GROUP,
    JOB_UID_LABEL,
    NOT_SEEN,
    WAITS,
    eviction_status,
    inactive,
    queue_of,
    queue_status,
)
from windlass.errors import EngineError

MAX_OBJECTS: Final = "2000"
"""Maximum number of objects of a kind that are read."""


def read(client: Client, owner: Json) -> QueueStatus | None:
    """Returns Kueue's status of `owner`, as far as the user may read it; None if `owner` uses no queue. Raises
    EngineError.
    """
    api = served(client, GROUP)
    if not api:
        return queue_status(owner, ())
    mine = _objects(client, api, "Workload", f"{JOB_UID_LABEL}={owner['metadata']['uid']}") or ()
    seen = queue_status(owner, mine)
    if seen is not None and seen.state in WAITS:  # a queue may be stopped, so the queues are read too
        seen = queue_status(owner, mine, _objects(client, api, "LocalQueue"))
    # another user's workload has preempted this one
    elif seen is not None and seen.by.startswith(NOT_SEEN):
        seen = queue_status(owner, _objects(client, api, "Workload") or mine)
    return seen


def evicted(client: Client, owner: Json) -> QueueStatus:
    """Returns why an owner object whose pods were created is suspended again."""
    message = f"{owner['kind']} {owner['metadata']['name']} was suspended"
    known = QueueStatus("evicted", queue_of(owner), reason="Suspended", message=message)
    try:
        api = served(client, GROUP)
        seen = eviction_status(owner, _objects(client, api, "Workload") or ()) if api else None
    except EngineError:
        return known
    return seen or known


def queues(client: Client) -> tuple[tuple[str, str], ...] | None:
    """Returns the LocalQueues of the namespace, each with the reason why it admits no jobs (empty if it does).

    Returns None if the user may not list LocalQueues. Raises EngineError.
    """
    api = served(client, GROUP)
    found = _objects(client, api, "LocalQueue") if api else None
    return None if found is None else tuple(sorted((one["metadata"]["name"], inactive(one)) for one in found))


def _objects(client: Client, api: str, kind: str, selector: str = "") -> list[Any] | None:
    return items(lambda: client.find(api, kind, selector, limit=MAX_OBJECTS))
