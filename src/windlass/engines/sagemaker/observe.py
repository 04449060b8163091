"""Collects observations of a run on SageMaker, for `why`: the record and the logs."""

from __future__ import annotations

from windlass.diagnose import observe as diagnose
from windlass.diagnose.observations import Observations
from windlass.engines.sagemaker import layout
from windlass.plan.plan import Plan
from windlass.runs.record import Status
from windlass.runs.store import Store


def observe(store: Store, status: Status) -> Observations:
    """What is known of a run."""
    plan = Plan.from_json(store.plan(status.id))
    [code] = plan.requests("code")
    return diagnose.observe(store, status, moved=(layout.CODE, code["folder"]))
