"""Removes runs that ended long ago."""

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
"""Value of `kept_for` for a run that is kept because its folder contains results."""


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
    """Removes runs that ended before `before` (Unix seconds); if `phases` are given, only runs in these phases.

    Without `force`, a run with the only copy of its checkpoints is kept, and a run that its engine cannot remove now,
    for example because the cluster does not respond. A run with results in its folder is kept unless `force` or
    `with_results` is set. `is_dry` removes nothing.
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
        except NoSuchRun:  # another command has just removed the run
            continue
        why = why or (RESULTS if keeps else "")
        found = PrunedRun(status.id, status.phase, now - status.times.ended_at, size.bytes, size.result_files, why)
        (kept if why else removed).append(found)
    return PrunedRuns(tuple(removed), tuple(kept), is_dry)


def _why_kept(status: Status, store: Store, *, force: bool, is_dry: bool) -> str:
    """Removes a run; returns why the run was kept, or an empty text. Raises NoSuchRun."""
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
