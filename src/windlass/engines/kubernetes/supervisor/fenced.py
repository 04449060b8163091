"""Lets a command append to a run's record in the cluster, while the command holds the run's Lease."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from windlass.compat import override
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.lease import Lease, holder_of
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.supervisor.record import ClusterRecord
from windlass.errors import EngineError, NoSuchRun, UsageError
from windlass.runs.clock import Clock
from windlass.runs.record import Status
from windlass.runs.store import RunWriter, Store
from windlass.supervise.backend import HeldElsewhere

HOLD_SECONDS: Final = 60.0
"""Seconds to wait for the Lease of an ended run, which its supervisor holds while it cleans up; longer than a Lease is
valid."""
HOLD_PAUSE_SECONDS: Final = 0.5


def lease_of(client: Client, run_id: str, home: Path) -> Lease:
    """Returns the Lease of a run, for a command that uses this home folder."""
    return Lease(client, run_id, holder_of(home), has_ended=partial(supervisor_status.has_ended_on, client, run_id))


@contextlib.contextmanager
def held(client: Client, status: Status, home: Path) -> Iterator[None]:
    """Holds the Lease of an ended run whose record still matches `status`; only one command at a time can hold it.

    Raises UsageError if another command has resumed the run, NoSuchRun if the run was removed, EngineError.
    """
    give_up, lease = time.monotonic() + HOLD_SECONDS, lease_of(client, status.id, home)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                is_held = lease.ensure()
            except HeldElsewhere:
                is_held, lease = False, lease_of(client, status.id, home)
            if is_held:
                stack.callback(lease.release)
            _require_same(client, status)
            if is_held:
                break
            if time.monotonic() > give_up:
                raise EngineError(
                    f"{status.id} is still held by another supervisor after {HOLD_SECONDS:g} s",
                    f"windlass status {status.id}",
                )
            time.sleep(HOLD_PAUSE_SECONDS)
        yield


def _require_same(client: Client, status: Status) -> None:
    try:
        events = ClusterRecord(client, status.id).head().events
    except Refused as error:
        if not error.is_absent(layout.record_name(status.id), "ConfigMap"):
            raise
        raise NoSuchRun(f"{status.id} was removed from the cluster") from error
    if not events or events[-1].seq != status.last_seq:
        raise UsageError(f"{status.id} was just resumed by another command", f"windlass status {status.id}")


class RecordFirst(Store):
    """Store of a command that appends to a record in the cluster: writes each event to the cluster first."""

    def __init__(self, home: Path, record: ClusterRecord) -> None:
        super().__init__(home)
        self._record = record

    @override
    def append(self, after: Status, added: Any, plan: str | None = None) -> None:
        """Appends events to the record in the cluster, and then to the store. Raises EngineError."""
        self._record.write(added, after, {})
        super().append(after, added, plan)


class ClusterClock(Clock):
    """Clock that returns the API server's time."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    @override
    def time(self) -> float:
        return super().time() + self._client.ahead


@contextlib.contextmanager
def writing(client: Client, writer: RunWriter) -> Iterator[RunWriter]:
    """Yields a writer for a run whose Lease this process holds; events are written to the cluster first, and then to
    the local record.
    """
    home = writer.store.home
    with RecordFirst(home, ClusterRecord(client, writer.status.id, holder_of(home))) as store:
        yield RunWriter(store, writer.status, writer.lock, ClusterClock(client))
