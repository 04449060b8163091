"""Queries clusters, with a time limit, for the state of recorded runs, and merges the state into their statuses.

The record of a run is as old as the last write of its supervisor. It is outdated after a reboot of the supervisor's
machine, after an outage of the API server, and for a run that was declared lost although its pods run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.access.optional import ANSWER_SECONDS, at_once
from windlass.engines.kubernetes.objects.namespace import ClusterNamespace, namespace_of
from windlass.engines.kubernetes.reading.discovery import discovery
from windlass.engines.kubernetes.reading.discovery.phase import GONE, Seen
from windlass.engines.values import RunState
from windlass.errors import WindlassError
from windlass.runs.events import ConditionChanged, Event, SupervisorRestarted
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    pass

FRESH_SECONDS: Final = 10.0
"""Seconds for which a record counts as current after a write, unless the supervisor was restarted within this time."""
WAITING: Final = frozenset({Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING})
RUNNING: Final = frozenset({Phase.STARTING, Phase.TRAINING, Phase.CHECKPOINTING})
REMOVED: Final = "its objects were removed from the cluster"
LOST_SECONDS: Final = 86400.0
"""Seconds after the end of a lost run during which lists of runs query its cluster. Showing a single run always queries
the cluster."""
RECORDED_LOST: Final = "the run is recorded as lost, and the phase is what the cluster reports now"
BEHIND: Final = "the phase is what the cluster reports now; the record is older"


@dataclass(frozen=True, slots=True)
class ListResult:
    """State of runs as reported by a cluster, or the error."""

    seen: Mapping[str, Seen] = field(default_factory=dict)
    """Runs that have objects in the cluster, by id."""
    error: str = ""
    """Why the cluster could not be queried; empty on success."""


def ask(wanted: Mapping[ClusterNamespace, Collection[str]]) -> dict[ClusterNamespace, ListResult]:
    """Returns, by namespace, the current state of the runs with these ids, or the error.

    All namespaces are queried in parallel, each for at most `ANSWER_SECONDS`.
    """
    results = at_once({place: partial(_look, place, ids) for place, ids in wanted.items()})
    return {place: _result(results.get(place)) for place in wanted}


def _look(place: ClusterNamespace, ids: Collection[str]) -> Mapping[str, Seen]:
    with contextlib.closing(Client(*place)) as client:
        lists = discovery.look(client, next(iter(ids)) if len(ids) == 1 else "")
    return {seen.id: seen for seen in lists.runs(time.time())}


def _result(found: Mapping[str, Seen] | WindlassError | None) -> ListResult:
    if found is None:
        return ListResult(error=f"does not answer within {ANSWER_SECONDS:g} s")
    if isinstance(found, WindlassError):
        return ListResult(
            error=f"{'does not answer' if isinstance(found, Unreachable) else 'cannot be asked'}: {found.message}"
        )
    return ListResult(found)


class Sign(NamedTuple):
    """Namespace of a run, and the time of the last observation in its record."""

    place: ClusterNamespace
    as_of: float
    """Time of the last recorded observation, in Unix seconds."""


def states(statuses: Iterable[Status], store: Store, now: float, *, is_thorough: bool) -> list[RunState]:
    """Returns the states of recorded runs at `now`. Clusters of runs whose record may be outdated are queried in
    parallel, each once.
    """
    statuses = list(statuses)
    found: dict[str, Sign] = {}
    wanted: dict[ClusterNamespace, list[str]] = {}
    for status in statuses:
        is_lately = is_thorough or now - (status.times.ended_at or now) < LOST_SECONDS
        if not status.phase.is_terminal or (status.phase is Phase.LOST and is_lately):
            sign = signs(status, store, now)
            if sign is not None:
                found[status.id] = sign
                wanted.setdefault(sign.place, []).append(status.id)
    results = ask(wanted)
    return [
        RunState(status, now) if status.id not in found else _state(status, found[status.id], results, now)
        for status in statuses
    ]


def _state(status: Status, sign: Sign, results: Mapping[ClusterNamespace, ListResult], now: float) -> RunState:
    answer = results[sign.place]
    if answer.error:
        return RunState(status, sign.as_of, f"cluster {status.target} {answer.error}")
    status, difference = merged(status, answer.seen.get(status.id), sign.as_of)
    return RunState(status, sign.as_of if difference else now, difference)


def signs(status: Status, store: Store, now: float) -> Sign | None:
    """Returns when a run was last observed, if its record may be outdated; None for a current record."""
    events = store.events(status.id, status.last_seq - 1)
    is_cut_off = bool(events) and not _is_sign(events[-1])
    if is_cut_off:
        events = [event for event in store.events(status.id) if _is_sign(event)]
    noted = events[-1].time if events else status.times.created_at
    as_of = min(now, max(noted, status.progress.at or 0.0, _last_written(store.run_dir(status.id), status)))
    is_behind = is_cut_off or status.phase.is_terminal or now - as_of > FRESH_SECONDS
    if not is_behind and not _is_reading_back(store, status.id, now):
        return None
    return Sign(namespace_of(store.plan(status.id)), as_of)


def _is_reading_back(store: Store, run_id: str, now: float) -> bool:
    """Whether a supervisor was restarted within FRESH_SECONDS, and may still be recording earlier events."""
    recent = store.events(run_id, since=now - FRESH_SECONDS)
    return any(event.kind == SupervisorRestarted.kind for event in recent)


def _is_sign(event: Event) -> bool:
    """Whether an event proves that the supervisor had received a response from the cluster.

    Neither the start of a supervisor nor a condition such as an unreachable cluster is a proof.
    """
    if event.kind == SupervisorRestarted.kind:
        return False
    return event.kind != ConditionChanged.kind or ConditionChanged.from_json(event.data).type is None


class Staleness:
    """Determines in a thread why the status of a followed run may be outdated."""

    again_seconds = 5.0
    """Seconds between two queries of the cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._why = ""

    def of(self, status: Status) -> str:
        """Returns, without waiting, why this newest status may be outdated according to the last query; empty if it is
        current.
        """
        is_asking = self._thread is not None and self._thread.is_alive()
        if is_asking or status.phase.is_terminal or time.monotonic() - self._asked_at < self.again_seconds:
            return self._why
        self._asked_at = time.monotonic()
        sign = signs(status, self._store, time.time())
        if sign is None:
            self._why = ""
        else:
            arguments = (status.id, status.target, sign)
            self._thread = threading.Thread(target=self._ask, args=arguments, name="is the record true", daemon=True)
            self._thread.start()
        return self._why

    def _ask(self, run_id: str, target: str, sign: Sign) -> None:
        error = ask({sign.place: [run_id]})[sign.place].error
        at = time.strftime("%H:%M:%S", time.localtime(sign.as_of))
        self._why = f"cluster {target} {error}; the state is as of {at}" if error else ""


def _last_written(run_dir: Path, status: Status) -> float:
    """Returns when the supervisor last wrote a log file of the newest attempt, in Unix seconds; 0 if there is none."""
    folder = run_dir / f"attempt-{len(status.attempts)}"
    with contextlib.suppress(OSError):
        return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
    return 0.0


def merged(status: Status, seen: Seen | None, as_of: float) -> tuple[Status, str]:
    """Returns a recorded status, updated with the cluster's current state, and how the two differed; empty if they
    agree. Pure.

    `seen` is None if the cluster has no object of the run; `as_of` is the time of the record, in Unix seconds.
    """
    if status.phase is Phase.LOST:
        # The end marker of a lost run records only that the run did not succeed.
        if seen is None or seen.phase in (Phase.LOST, Phase.FAILED, Phase.RESTARTING):
            return status, ""
        return in_phase(status, seen.phase, seen.waits_for, as_of), RECORDED_LOST
    if status.phase.is_terminal:
        return status, ""
    phase, waits = _phase(status, seen)
    if phase is status.phase:
        return status, ""
    return in_phase(status, phase, waits, as_of), BEHIND


def _phase(status: Status, seen: Seen | None) -> tuple[Phase, str]:
    """Returns the current phase of an unfinished run, and what the run waits for."""
    before = status.phase
    if seen is None:
        return Phase.STOPPING, REMOVED
    if before is (Phase.UPLOADING if status.attempts else Phase.STAGING) and seen.attempt <= len(status.attempts):
        return before, ""  # the objects do not show Jobs that transfer files
    if seen.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.STOPPING):
        return seen.phase, ""
    if before in (Phase.STOPPING, Phase.RESTARTING) and seen.attempt <= len(status.attempts):
        return before, ""  # pods of an ended attempt may still exist
    if seen.phase in (Phase.RESTARTING, Phase.LOST):
        is_between = not status.attempts or status.attempts[-1].ended_at is not None
        is_older = seen.phase is Phase.RESTARTING and seen.attempt < len(status.attempts)
        if is_between or is_older:
            return before, ""  # the objects of the next attempt do not exist yet
        return Phase.RESTARTING, GONE if seen.phase is Phase.LOST else seen.waits_for
    if seen.phase in WAITING:
        # provisioning is known only from the record
        return (before if before is Phase.PROVISIONING else seen.phase), seen.waits_for
    return (before if before in RUNNING else Phase.STARTING), ""


def in_phase(status: Status, phase: Phase, waits: str, as_of: float) -> Status:
    """Returns the status with another phase that began at `as_of` (Unix seconds)."""
    times = replace(
        status.times,
        phase_since=max(as_of, status.times.phase_since),
        phases=status.phases_at(as_of),
        ended_at=status.times.ended_at if phase.is_terminal else None,
    )
    return replace(status, phase=phase, times=times, waits_for=waits or None)
