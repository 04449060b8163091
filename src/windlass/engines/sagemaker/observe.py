"""Collects observations of a run on SageMaker for `why`: the record, the logs and its newest training job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windlass.diagnose import observe as diagnose
from windlass.diagnose.observations import Observations
from windlass.engines.sagemaker import layout
from windlass.engines.sagemaker.connect import connect
from windlass.engines.sagemaker.description import read_description
from windlass.engines.sagemaker.diagnose import ObservedJob, rules_on
from windlass.engines.sagemaker.plan import LOCAL_IMAGE
from windlass.engines.sagemaker.service import ENDED
from windlass.engines.sagemaker.unfinished import UnfinishedMarker
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.plan.steps import CodeStep, ServiceStep, TrainingJobStep
from windlass.runs.record import Status
from windlass.runs.store import Store


def observe(store: Store, status: Status) -> Observations:
    """Returns the observations of a run."""
    plan = store.plan(status.id)
    job = observed_job(store, plan, status)
    seen = diagnose.observe(store, status, moved=(layout.CODE, plan.only(CodeStep).folder))
    away = f"the training job: {job.unreachable}"
    return replace(seen, rules=rules_on(job), not_seen=(away,) if job.unreachable else (), image=image_of(job.request))


def image_of(body: Mapping[str, Any]) -> str:
    """Returns the image in which a training job runs its script; empty for a job on this machine."""
    image = str(body["AlgorithmSpecification"]["TrainingImage"])
    return "" if image == LOCAL_IMAGE else image


def observed_job(store: Store, plan: Plan, status: Status) -> ObservedJob:
    """Returns the training job of the newest attempt: its stored description, or the current one if it has not
    ended.
    """
    body, where = plan.only(TrainingJobStep).body, plan.only(ServiceStep)
    left = UnfinishedMarker(store.run_dir(status.id)).read()
    seen = ObservedJob(body, plan.target, where.region, model=left.model, why_model=left.why_model)
    if not status.attempts:
        return seen
    number = status.attempts[-1].number
    seen = replace(seen, description=read_description(store.run_dir(status.id) / f"attempt-{number}"))
    if status.phase.is_terminal or seen.description.get("TrainingJobStatus") in ENDED:
        return seen
    try:
        with contextlib.closing(connect(where, os.environ)) as service:
            return replace(seen, description=service.describe(layout.job_name(status.id, number)))
    except EngineError as error:
        return replace(seen, unreachable=error.message)
