"""Removes from the cluster what is left of expired runs that this machine supervised; no pod there can do it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.ttl import WEEK_SECONDS, seconds_of
from windlass.engines.kubernetes.reading.discovery.snapshot import place_of
from windlass.engines.kubernetes.running import shutdown
from windlass.runs.phase import Phase
from windlass.runs.record import CLUSTER, Status
from windlass.runs.store import Store

SWEPT: Final = "expired"
"""File in the folder of a run once it was looked at after its expiry."""
AT_ONCE: Final = 5
"""Ended runs that one submission looks at: the user waits for it."""


def sweep(store: Store, client: Client, target: str, now: float) -> None:
    """Remove expired runs of this machine from the namespace of a client; their records stay here.

    Raises EngineError, StoreError, OSError.
    """
    for status in itertools.islice(_ended(store, target, now), AT_ONCE):
        plan = store.plan(status.id)
        place, seconds = place_of(plan), seconds_of(plan)
        if seconds < float("inf") and (place.context, place.namespace) == (client.context, client.namespace):
            if now - (status.ended_at or now) < seconds:
                continue
            shutdown.remove(client, status.id)
        _mark(store, status).touch()


def _ended(store: Store, target: str, now: float) -> Iterator[Status]:
    """Runs that ended a week ago or earlier, and were not looked at since; a lost one may have pods that train."""
    for status in store.statuses():
        is_ours = status.target == target and status.supervisor != CLUSTER and status.phase is not Phase.LOST
        if is_ours and status.ended_at is not None and now - status.ended_at > WEEK_SECONDS:
            mark = _mark(store, status)
            if not mark.exists() or mark.stat().st_mtime < status.ended_at:
                yield status


def _mark(store: Store, status: Status) -> Path:
    return store.run_dir(status.id) / SWEPT
