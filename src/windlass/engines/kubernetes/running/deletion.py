"""After the run ends, watches the nodes that were provisioned for it until they are deleted, and records when.

Karpenter deletes nodes by its own rules, and a deleted node leaves no trace in the cluster, so that only a watching
process can record the time. The watch holds no lock, and ends if the run is resumed or removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.reading import claims
from windlass.engines.kubernetes.running.provisioning_watch import ProvisioningWatch
from windlass.errors import EngineError, WindlassError
from windlass.runs.events import Entry, NodeProvisioning, Warned
from windlass.runs.node_events import Reported
from windlass.runs.store import Store

MAX_SECONDS: Final = 1800.0
"""Seconds after which a node that still exists is recorded as kept, for an unknown reason."""
LOOK_SECONDS: Final = 5.0
KEPT: Final = "kept"


def watch_deletion(store: Store, run_id: str, client: Client) -> None:
    """Records when each node that was provisioned for an ended run is deleted. Returns once no node is left, the run is
    resumed, or MAX_SECONDS have passed.
    """
    with contextlib.suppress(WindlassError):
        known = claims.recorded(store.events(run_id), time.time(), every_attempt=True)
        watch = ProvisioningWatch(client, [one for one in claims.still_there(known) if one.state != KEPT])
        give_up = time.monotonic() + MAX_SECONDS
        while watch.remaining and store.status(run_id).phase.is_terminal:
            if time.monotonic() >= give_up:
                for one in watch.remaining:
                    _record(store, run_id, claims.event_of(one.replace(state=KEPT)))
                return
            try:
                with contextlib.suppress(EngineError):
                    watch.read((), ())
                for event in counted(watch):
                    _record(store, run_id, event.entry, event.at)
            except (KeyError, TypeError, ValueError, AttributeError) as error:  # an object has an unexpected shape
                client.health.crashed("machines", error)
                for warning in client.health.updates():
                    _record(store, run_id, Warned(warning.message))
            if watch.remaining:
                time.sleep(LOOK_SECONDS)


def counted(watch: ProvisioningWatch) -> Iterator[Reported]:
    """Yields state changes of nodes; the event of a deleted node includes the number of nodes that remain."""
    changes = list(watch.changes())
    is_gone = [isinstance(event.entry, NodeProvisioning) and event.entry.state == "gone" for event in changes]
    for at, event in enumerate(changes):
        left = len(watch.remaining) + sum(is_gone[at + 1 :])
        entry = NodeProvisioning.from_json({**event.entry.to_json(), "left": left}) if is_gone[at] else event.entry
        yield Reported(event.at, entry)


def _record(store: Store, run_id: str, entry: Entry, at: float | None = None) -> None:
    """Appends an event to the record of an ended run. Does nothing if a supervisor holds the record, since the run was
    then resumed.
    """
    writer = store.writer(run_id)
    if writer is not None:
        with contextlib.closing(writer):
            if writer.status.phase.is_terminal:
                writer.append(entry, at=at)
