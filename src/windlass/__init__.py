"""Windlass takes an unchanged training script to any number of workers and brings the trained model back.

    import windlass

    run = windlass.run(windlass.Job(name="digits", run="train.py", nodes=2, procs_per_node=2))
    for event in run.events():
        print(event.kind, event.data)
    print(run.wait().phase, run.output_dir)

Nothing is imported before it is used: this file travels to every node, where only `windlass.train` and the worker are.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers understand too; `typing` takes as long to import as all else here

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from windlass.actions.api import Run, compare, get, list_runs, make_plan, run, submit
    from windlass.diagnose.verdict import Diagnosis, Verdict
    from windlass.errors import (
        EngineError,
        JobFileError,
        NoSuchRun,
        PlanError,
        Problem,
        RunEnded,
        RunFailed,
        RunNotFinished,
        RunStopped,
        StoreError,
        UsageError,
        WindlassError,
    )
    from windlass.plan.notes import Note
    from windlass.plan.plan import Plan
    from windlass.plan.steps import Step
    from windlass.runs.context import Context
    from windlass.runs.events import Event
    from windlass.runs.ledger import Cost, Ledger
    from windlass.runs.logs import LogLine
    from windlass.runs.phase import Phase
    from windlass.runs.record import Attempt, RankState, Status
    from windlass.runs.time_accounting import Spent
    from windlass.spec.job import Job
    from windlass.views.artifacts import CopiedFiles
    from windlass.views.checkpoints import CheckpointView
    from windlass.views.comparison import Comparison

_HOMES = {
    "Attempt": "windlass.runs.record",
    "CheckpointView": "windlass.views.checkpoints",
    "Comparison": "windlass.views.comparison",
    "Context": "windlass.runs.context",
    "CopiedFiles": "windlass.views.artifacts",
    "Cost": "windlass.runs.ledger",
    "Diagnosis": "windlass.diagnose.verdict",
    "Event": "windlass.runs.events",
    "Job": "windlass.spec.job",
    "Ledger": "windlass.runs.ledger",
    "LogLine": "windlass.runs.logs",
    "Note": "windlass.plan.notes",
    "Phase": "windlass.runs.phase",
    "Plan": "windlass.plan.plan",
    "RankState": "windlass.runs.record",
    "Run": "windlass.actions.api",
    "Spent": "windlass.runs.time_accounting",
    "Status": "windlass.runs.record",
    "Step": "windlass.plan.steps",
    "Verdict": "windlass.diagnose.verdict",
    "compare": "windlass.actions.api",
    "get": "windlass.actions.api",
    "list_runs": "windlass.actions.api",
    "make_plan": "windlass.actions.api",
    "run": "windlass.actions.api",
    "submit": "windlass.actions.api",
    **dict.fromkeys(
        ["EngineError", "JobFileError", "NoSuchRun", "PlanError", "Problem", "RunEnded", "RunFailed",
         "RunNotFinished", "RunStopped", "StoreError", "UsageError", "WindlassError"],
        "windlass.errors",
    ),
}  # fmt: skip

__all__ = [
    "Attempt",
    "CheckpointView",
    "Comparison",
    "Context",
    "CopiedFiles",
    "Cost",
    "Diagnosis",
    "EngineError",
    "Event",
    "Job",
    "JobFileError",
    "Ledger",
    "LogLine",
    "NoSuchRun",
    "Note",
    "Phase",
    "Plan",
    "PlanError",
    "Problem",
    "RankState",
    "Run",
    "RunEnded",
    "RunFailed",
    "RunNotFinished",
    "RunStopped",
    "Spent",
    "Status",
    "Step",
    "StoreError",
    "UsageError",
    "Verdict",
    "WindlassError",
    "compare",
    "get",
    "list_runs",
    "make_plan",
    "run",
    "submit",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'windlass' has no attribute '{name}'")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])
