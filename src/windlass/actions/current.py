"""How runs are now: the record, and of runs on clusters what the cluster reports where the record may be old."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.actions import runs
from windlass.runs.record import Event, Phase, Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.engines.kubernetes.snapshot import Answer, Place

LOST_SECONDS: Final = 86400.0
"""For how long after its end a list of runs asks whether a lost one is lost; to look at one run, it is always asked."""


@dataclass(frozen=True, slots=True)
class View:
    """A status, and how true it is now."""

    status: Status
    as_of: float
    """Unix seconds: when what the record says was true."""
    stale: str = ""
    """Why it may be otherwise by now; empty where it is as of now."""

    def to_json(self) -> dict[str, Any]:
        """What `-o json` adds to a status."""
        return {"as_of": self.as_of if self.stale else None, "stale": self.stale or None}


def view(run: str | None, store: Store, now: float) -> View:
    """The run that `run` stands for, the newest without one, as it is `now` (Unix seconds). Raises NoSuchRun."""
    [found] = _views([runs.status(run, store)], store, now, every_lost=True)
    return found


def views(store: Store, now: float, *, last: int | None = None) -> list[View]:
    """All unfinished runs and the `last` newest of all (every run with None), newest first."""
    return _views(runs.statuses(store, last=last), store, now)


def _views(statuses: Iterable[Status], store: Store, now: float, *, every_lost: bool = False) -> list[View]:
    """Each run; the clusters of those whose record may be old are asked at once, and once."""
    statuses = list(statuses)
    signs: dict[str, tuple[Place, float]] = {}
    for status in statuses:
        is_lately = every_lost or now - (status.ended_at or now) < LOST_SECONDS
        if not status.phase.is_terminal or (status.phase is Phase.LOST and is_lately):
            found = old(status, store, now)
            if found is not None:
                signs[status.id] = found
    if not signs:
        return [View(status, now) for status in statuses]
    from windlass.engines.kubernetes.snapshot import ask

    wanted: dict[Place, list[str]] = {}
    for run_id, (place, _) in signs.items():
        wanted.setdefault(place, []).append(run_id)
    answers = ask(wanted)
    return [
        View(status, now) if status.id not in signs else _view(status, *signs[status.id], answers, now)
        for status in statuses
    ]


def _view(status: Status, place: Place, as_of: float, answers: dict[Place, Answer], now: float) -> View:
    from windlass.engines.kubernetes.snapshot import merged

    answer = answers[place]
    if answer.error:
        return View(status, as_of, f"cluster {status.target} {answer.error}")
    found, how = merged(status, answer.seen.get(status.id), as_of)
    return View(found, as_of if how else now, how)


def old(status: Status, store: Store, now: float) -> tuple[Place, float] | None:
    """Where to ask for a run whose record may be old, and as of when it is; None where there is nothing to ask."""
    plan = store.plan(status.id)
    if plan["engine"] != "kubernetes":
        return None
    from windlass.engines.kubernetes.snapshot import FRESH_SECONDS, last_sign, place_of

    events = store.events(status.id, status.last_seq - 1)
    is_cut_off = bool(events) and not _is_sign(events[-1])
    if is_cut_off:
        events = [event for event in store.events(status.id) if _is_sign(event)]
    told = events[-1].time if events else status.created_at
    at = status.progress.get("at")
    progress = float(at) if isinstance(at, int | float) else 0.0
    as_of = min(now, max(told, progress, last_sign(store.run_dir(status.id), status)))
    is_fresh = not is_cut_off and not status.phase.is_terminal and now - as_of <= FRESH_SECONDS
    return None if is_fresh else (place_of(plan), as_of)


def _is_sign(event: Event) -> bool:
    """Whether an event shows that the run's supervisor has heard from its cluster.

    It does not where a new supervisor was started, or where the event says what it cannot find out.
    """
    if event.kind == "adopted":
        return False
    return event.kind != "condition" or event.data.get("type") is None


class Sight:
    """Whether what a command shows of a run that it follows is as of now; asks the cluster in the background."""

    again_seconds = 5.0
    """Between two questions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self.stale = ""
        """Why it may not be; empty where it is."""

    def look(self, status: Status) -> str:
        """Take in the newest status; gives why it may be old by now, from the last answer. Returns at once."""
        if time.monotonic() - self._asked_at < self.again_seconds or status.phase.is_terminal:
            return self.stale
        if self._thread is not None and self._thread.is_alive():
            return self.stale
        self._asked_at = time.monotonic()
        found = old(status, self._store, time.time())
        if found is None:
            self.stale = ""
            return self.stale
        place, as_of = found
        words = (status.id, status.target, place, as_of)
        self._thread = threading.Thread(target=self._ask, args=words, name="is the record true", daemon=True)
        self._thread.start()
        return self.stale

    def _ask(self, run_id: str, target: str, place: Place, as_of: float) -> None:
        from windlass.engines.kubernetes.snapshot import ask

        error = ask({place: [run_id]})[place].error
        at = time.strftime("%H:%M:%S", time.localtime(as_of))
        self.stale = f"cluster {target} {error}; the state is as of {at}" if error else ""
