"""Reads what clusters have recorded of the runs that are supervised there, since this machine last did."""

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
    """What the cluster has recorded of a run since the cache was filled."""

    events: list[Event]
    summary: Mapping[str, Any]
    is_started: bool = True
    """Whether there is a record at all: the submission may have been killed before it was made."""
    is_removed: bool = False
    """Whether the run was removed from the cluster."""
    absence: Absence | None = None
    """Why no supervisor acts for it; None where one does."""
    quiet_since: float | None = None
    """The last sign of life of its supervisor, in Unix seconds, where one is overdue; None where it acts."""
    plan: str | None = None
    """Its new plan, where it was resumed with another number of nodes."""


class UpdateReader:
    """Reads the records of runs of this store; it changes nothing, here or there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clients: dict[ClusterNamespace, Client] = {}
        self._imported: set[str] = set()
        """Runs whose plan is of another machine."""

    def reconnected(self, store: Store) -> UpdateReader:
        """The same clients, with another connection to the records."""
        found = copy.copy(self)
        found._store = store
        return found

    def read(self, statuses: Sequence[Status]) -> dict[str, RunUpdate | WindlassError]:
        """Update of these runs, or why there is none; a removal is reported only where two requests find it."""
        updates = self._ask(statuses)
        if absent := [
            one for one in statuses if isinstance(found := updates.get(one.id), RunUpdate) and found.is_removed
        ]:
            time.sleep(ABSENT_SECONDS)  # a server that is being restored reports objects absent for a moment
            updates |= self._ask(absent)
        return updates

    def client(self, run_id: str) -> Client:
        """A client of the run's namespace, which is kept. Raises EngineError, UsageError."""
        return self._client_of(namespace_of(self._store.plan(run_id)))

    def _client_of(self, place: ClusterNamespace) -> Client:
        if place not in self._clients:
            self._clients[place] = Client(*place)
        return self._clients[place]

    def _ask(self, statuses: Sequence[Status]) -> dict[str, RunUpdate | WindlassError]:
        """Update of these runs, or why there is none, from all their places at the same time."""
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
        """Update of the runs of a place. Of several, one list shows which have any. Raises Unreachable, Refused."""
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
            except (DamagedRecord, Refused) as error:  # one damaged record must not hide the other runs
                found[status.id] = error
        return found

    def _is_quiet(self, client: Client, status: Status, now: float) -> bool:
        """Whether nothing was recorded for so long that a supervisor may be absent."""
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
        is_quiet = now + client.ahead - written_at > supervisor_status.QUIET_SECONDS  # events have times of the cluster
        absence = None
        if not status.phase.is_terminal and (is_quiet or _is_starting(head, status.id)):
            absence = supervisor_status.absence(client, status.id, now, may_start=not is_quiet)
        is_watched = not status.phase.is_terminal and is_quiet and absence is None
        silent_since = supervisor_status.quiet_since(client, status.id, now) if is_watched else None
        # A submission or a resume was killed between the record and the supervisor's Job, which is created last.
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
        """Update of a run whose record is not there: it was removed, or not submitted completely."""
        if client.get_if_exists("v1", "ConfigMap", status.id) is None:
            return RunUpdate([], {}, is_started=False, is_removed=True)
        if not supervisor_status.absence(client, status.id, now):
            name = layout.record_name(status.id)
            raise DamagedRecord(f"ConfigMap {name} was deleted; the run's supervisor writes it again")
        return RunUpdate([], {}, is_started=False)

    def _new_plan(self, client: Client, place: ClusterNamespace, run_id: str, events: Iterable[Event]) -> str | None:
        """The plan of a run, where the machine that submitted it has resumed it by another one."""
        is_new = any(resumed.nodes is not None for resumed in entries(events, RunResumed))
        return plan_in(client, place, run_id).to_text() if is_new and run_id in self._imported else None


def _is_starting(head: Head, run_id: str) -> bool:
    """Whether no supervisor has recorded anything since it was started: then it may be one that crashes at once."""
    by_supervisor = host_of(head.writer).startswith(f"{layout.supervisor_name(run_id)}-")
    return not by_supervisor or (bool(head.events) and head.events[-1].kind == SupervisorRestarted.kind)


def plan_in(client: Client, place: ClusterNamespace, run_id: str) -> Plan:
    """The plan of a run that another machine has submitted.

    Raises Refused, Unreachable, DamagedRecord, UnsupportedVersion.
    """
    name = layout.supervisor_name(run_id)
    return imported_plan(client.get("v1", "ConfigMap", name), client.get(BATCH, "Job", name), run_id, place)
