"""Says why a run ended as it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.actions.runs import engine_for
from windlass.runs.record import Status
from windlass.runs.store import Store

if TYPE_CHECKING:
    from windlass.diagnose.verdict import Diagnosis


def why(run: str | None, store: Store) -> tuple[Status, Diagnosis]:
    """The status of the run that `run` stands for (the newest without one), and why it is so. Raises NoSuchRun."""
    from windlass.diagnose.diagnose import diagnose

    run_id = store.find(run)
    seen = engine_for(run_id, store).observe(run_id)
    return seen.status, diagnose(seen)
