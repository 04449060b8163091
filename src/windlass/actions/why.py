"""Diagnoses why a run ended as it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.diagnose.verdict import Diagnosis
    from windlass.engines.base import Engine
    from windlass.views.verdict import Why


def why(run_id: str, engine: Engine) -> Diagnosis:
    """Returns the diagnosis of a run, from everything that its engine can observe. Raises NoSuchRun."""
    from windlass.diagnose.diagnose import diagnose

    return diagnose(engine.observe(run_id))


def report(run_id: str, engine: Engine) -> Why:
    """Returns the diagnosis with every restart of the run, as `windlass why` shows it. Raises NoSuchRun."""
    from windlass.diagnose.diagnose import diagnose
    from windlass.runs.data import data_differences
    from windlass.runs.ledger import restarts
    from windlass.views.verdict import Why

    seen = engine.observe(run_id)
    different = data_differences(seen.status, engine.store)
    return Why(seen.status, diagnose(seen), tuple(restarts(seen.events)), different)
