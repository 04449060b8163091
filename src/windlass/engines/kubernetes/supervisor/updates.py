"""Reads what runs with a supervisor in the cluster have recorded since this machine's last read."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from windlass.engines.kubernetes.access.absence import ABSENT_SECONDS
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.lease import host_of
from windlass.engines.kubernetes.access.optional import at_once
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.namespace import ClusterNamespace, namespace_of
from windlass.engines.kubernetes.objects.workloads.job import BATCH
from windlass.engines.kubernetes.reading import supervisor_status
from windlass.engines.kubernetes.reading.discovery.object_lists import summaries
from windlass.engines.kubernetes.reading.supervisor_status import Absence
from windlass.engines.kubernetes.supervisor.imported import imported_plan
from windlass.engines.kubernetes.supervisor.record import ClusterRecord, DamagedRecord, Head
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.plan.steps import CodeStep
from windlass.runs.events import Event, RunResumed, SupervisorRestarted, entries
from windlass.runs.record import Status
from windlass.runs.store import Store


class RunUpdate(NamedTuple):
    """Changes in a run's record in the cluster since the cached record was last updated."""

    events: list[Event]
    summary: Mapping[str, Any]
    is_started: bool = True
    """Whether the supervisor's Job exists; a submission that was killed may not have created it."""
    is_removed: bool = False
    """Whether the run was removed from the cluster."""
    absence: Absence | None = None
    """Why the run has no acting supervisor; None if it has one."""
    quiet_since: float | None = None
    """Time of an overdue supervisor's last Lease renewal in Unix seconds; None if no renewal is overdue."""
    plan: str | None = None
    """Plan of a run that another machine resumed with a different number of nodes; else None."""


class UpdateReader:
    """Reads the records of a store's runs; changes neither the store nor the cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clients: dict[ClusterNamespace, Client] = {}
        self._imported: set[str] = set()
        """Ids of runs that another machine submitted."""

    def reconnected(self, store: Store) -> UpdateReader:
        """Returns a copy with the same clients and another connection to the store."""
        found = copy.copy(self)
        found._store = store
        return found

    def read(self, statuses: Sequence[Status]) -> dict[str, RunUpdate | WindlassError]:
        """Returns, by run id, the update or the error of reading it. A removal is reported only if two reads in
        succession find it.
        """
        updates = self._ask(statuses)
        if absent := [
            one for one in statuses if isinstance(found := updates.get(one.id), RunUpdate) and found.is_removed
        ]:
            # While it is being restored, an API server may report existing objects as missing.
            time.sleep(ABSENT_SECONDS)
            updates |= self._ask(absent)
        return updates

    def client(self, run_id: str) -> Client:
        """Returns the client for the run's namespace; each client is created once. Raises EngineError, UsageError."""
        return self._client_of(namespace_of(self._store.plan(run_id)))

    def _client_of(self, place: ClusterNamespace) -> Client:
        if place not in self._clients:
            self._clients[place] = Client(*place)
        return self._clients[place]

    def _ask(self, statuses: Sequence[Status]) -> dict[str, RunUpdate | WindlassError]:
        """Returns, by run id, the update or the error of reading it; all namespaces are read in parallel."""
        places: dict[ClusterNamespace, list[Status]] = {}
        for status in statuses:
            plan = self._store.plan(status.id)
            places.setdefault(namespace_of(plan), []).append(status)
            if any(code.is_imported for code in plan.every(CodeStep)):
                self._imported.add(status.id)
        now = time.time()
        answers = at_once({place: partial(self._look, place, its, now) for place, its in places.items()})
        found: dict[str, RunUpdate | WindlassError] = {}
        for place, its in places.items():
            answer = answers.get(place)
            if isinstance(answer, WindlassError):
                found |= {status.id: answer for status in its}
            elif answer is not None:
                found |= answer
        return found

    def _look(
        self, place: ClusterNamespace, statuses: Sequence[Status], now: float
    ) -> dict[str, RunUpdate | WindlassError]:
        """Reads the updates of runs in one namespace. For several runs, a single list request shows whose records have
        changed. Raises Unreachable, Refused.
        """
        client = self._client_of(place)
        known = summaries(client) if len(statuses) > 1 else {}
        quiet = {one.id for one in statuses if known and not one.phase.is_terminal and self._is_quiet(client, one, now)}
        quiet -= supervisor_status.acting(client) if quiet else set()
        found: dict[str, RunUpdate | WindlassError] = {}
        for status in statuses:
            summary = known.get(status.id, {})
            try:
                is_known = summary.get("last_seq") == status.last_seq and status.id not in quiet
                found[status.id] = RunUpdate([], summary) if is_known else self._update_of(client, place, status, now)
            except (DamagedRecord, Refused) as error:  # a damaged record must not hide the other runs
                found[status.id] = error
        return found

    def _is_quiet(self, client: Client, status: Status, now: float) -> bool:
        """Returns whether the record has been unchanged for so long that the supervisor may be absent."""
        newest = self._store.events(status.id, status.last_seq - 1)
        written_at = newest[-1].time if newest else status.times.created_at
        return now + client.ahead - written_at > supervisor_status.QUIET_SECONDS

    def _update_of(self, client: Client, place: ClusterNamespace, status: Status, now: float) -> RunUpdate:
        try:
            head, events = ClusterRecord(client, status.id).read(status.last_seq)
        except Refused as error:
            if not error.is_absent(layout.record_name(status.id), "ConfigMap"):
                raise
            return self._without_record(client, status, now)
        written_at = max((event.time for event in head.events), default=status.times.created_at)
        # the times of events are those of the cluster's clock
        is_quiet = now + client.ahead - written_at > supervisor_status.QUIET_SECONDS
        absence = None
        if not status.phase.is_terminal and (is_quiet or _is_starting(head, status.id)):
            absence = supervisor_status.absence(client, status.id, now, may_start=not is_quiet)
        is_watched = not status.phase.is_terminal and is_quiet and absence is None
        silent_since = supervisor_status.quiet_since(client, status.id, now) if is_watched else None
        # The Job is created last, so it is missing if a submission or a resume was killed after it wrote the record.
        has_job = not absence or client.get_if_exists(BATCH, "Job", layout.supervisor_name(status.id)) is not None
        plan = self._new_plan(client, place, status.id, events)
        return RunUpdate(
            events,
            head.summary,
            is_started=has_job,
            absence=absence,
            quiet_since=silent_since,
            plan=plan,
        )

    @staticmethod
    def _without_record(client: Client, status: Status, now: float) -> RunUpdate:
        """Returns the update of a run without a record, which was removed or only partly submitted. Raises
        DamagedRecord if only the record was deleted.
        """
        if client.get_if_exists("v1", "ConfigMap", status.id) is None:
            return RunUpdate([], {}, is_started=False, is_removed=True)
        if not supervisor_status.absence(client, status.id, now):
            name = layout.record_name(status.id)
            raise DamagedRecord(f"ConfigMap {name} was deleted; the run's supervisor writes it again")
        return RunUpdate([], {}, is_started=False)

    def _new_plan(self, client: Client, place: ClusterNamespace, run_id: str, events: Iterable[Event]) -> str | None:
        """Returns the new plan of an imported run that was resumed with a different number of nodes; otherwise None."""
        is_new = any(resumed.nodes is not None for resumed in entries(events, RunResumed))
        return plan_in(client, place, run_id).to_text() if is_new and run_id in self._imported else None


def _is_starting(head: Head, run_id: str) -> bool:
    """Returns whether the supervisor has recorded nothing since its start; such a supervisor may be crashing
    repeatedly.
    """
    by_supervisor = host_of(head.writer).startswith(f"{layout.supervisor_name(run_id)}-")
    return not by_supervisor or (bool(head.events) and head.events[-1].kind == SupervisorRestarted.kind)


def plan_in(client: Client, place: ClusterNamespace, run_id: str) -> Plan:
    """Reads the plan of a run that another machine submitted.

    Raises Refused, Unreachable, DamagedRecord, UnsupportedVersion.
    """
    name = layout.supervisor_name(run_id)
    return imported_plan(client.get("v1", "ConfigMap", name), client.get(BATCH, "Job", name), run_id, place)
