"""Makes the backend in a supervisor process of a local run. A supervisor imports less than a command: no engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windlass.engines.local.backend import LocalBackend
from windlass.plan.plan import Plan

if TYPE_CHECKING:
    from windlass.runs.record import Status
    from windlass.runs.store import Store


def make_backend(plan: Plan, run_dir: Path) -> LocalBackend:
    """Returns the backend of a supervisor, which also updates the records of the runs that this run waits for."""
    return LocalBackend(plan, run_dir, _updated)


def _updated(store: Store, run_id: str) -> Status:
    from windlass.engines.local.engine import LocalEngine  # only a run that waits for another one needs the engine

    return LocalEngine(store).status(run_id)
