"""Removes the runs that ended long ago."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from windlass.actions import runs
from windlass.actions.disk import run_disk
from windlass.errors import NoSuchRun, UsageError, WindlassError
from windlass.runs.phase import TERMINAL, Phase
from windlass.runs.record import Status
from windlass.runs.store import Store
from windlass.views.disk import PrunedRun, PrunedRuns

RESULTS: Final = "results"
"""Why a run with results in its folder is kept."""


def prune(
    store: Store,
    before: float,
    phases: Collection[Phase],
    *,
    now: float,
    force: bool = False,
    is_dry: bool = False,
    with_results: bool = False,
) -> PrunedRuns:
    """Remove the runs that ended before `before` (Unix seconds), in one of these phases where any are given.

    A run is kept, unless forced, with which the only checkpoint would go that it could be resumed from; and one that
    its engine does not remove now, such as one of a cluster that does not answer. One with results in its folder is
    kept unless forced or called `with_results`. `is_dry` removes nothing.
    """
    removed: list[PrunedRun] = []
    kept: list[PrunedRun] = []
    for status in reversed(store.statuses()):
        if status.times.ended_at is None or status.times.ended_at >= before or status.phase not in (phases or TERMINAL):
            continue
        try:
            size = run_disk(store, status)
            keeps = size.result_files if not (force or with_results) else 0
            why = _why_kept(status, store, force=force, is_dry=is_dry or bool(keeps))
        except NoSuchRun:  # another command has just removed it
            continue
        why = why or (RESULTS if keeps else "")
        found = PrunedRun(status.id, status.phase, now - status.times.ended_at, size.bytes, size.result_files, why)
        (kept if why else removed).append(found)
    return PrunedRuns(tuple(removed), tuple(kept), is_dry)


def _why_kept(status: Status, store: Store, *, force: bool, is_dry: bool) -> str:
    """Remove a run; returns why it was not removed. Raises NoSuchRun."""
    try:
        engine = runs.engine_for(status.id, store)
        if not force:
            runs.require_removable(engine, status.id)
        if not is_dry:
            engine.delete(status.id)
    except NoSuchRun:
        raise
    except UsageError as error:
        return error.message.removeprefix(f"{status.id} has ended as {status.phase} and ")
    except WindlassError as error:
        return error.message
    return ""
