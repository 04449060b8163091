"""Plans jobs for SageMaker, and validates requests with botocore's model of the service."""

from __future__ import annotations

import functools
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from botocore.session import Session
from botocore.validate import ParamValidator
from tests.engines.harness import Can, Way

from windlass.code.pack import Packed
from windlass.engines.sagemaker.engine import SageMakerEngine, SageMakerLocalEngine
from windlass.engines.sagemaker.facts import Facts, read_facts
from windlass.engines.sagemaker.plan import plan
from windlass.engines.travel import CodeFacts
from windlass.plan.plan import Plan
from windlass.plan.steps import TrainingJobStep
from windlass.spec.job import Job
from windlass.spec.targets import SageMakerLocalTarget, SageMakerTarget

CODE = Packed(b"x" * 9000, "ab" * 32, (("train.py", 900),))
BUCKET = "training"
ROLE = "arn:aws:iam::123456789012:role/training"
FOLDER = CodeFacts("/home/ada/job", True, True, CODE, imports=("torch",))
FACTS = Facts("/home/ada/.windlass", FOLDER, "ada", "/env/bin/python", 8, ROLE)
FIELDS: Mapping[str, Any] = {
    "name": "aws",
    "region": "us-east-1",
    "role": ROLE,
    "storage": "s3://bucket/windlass/",
    "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1",
    "instance": "ml.g5.xlarge",
}


def planned(facts: Facts = FACTS, target: Mapping[str, Any] | None = None, **fields: Any) -> Plan:
    """Returns the plan of a job on SageMaker; `target` adds to the target's `FIELDS`."""
    job = Job(**{"name": "digits", "run": "train.py --epochs 5", **fields})
    return plan(job, SageMakerTarget(**{**FIELDS, **(target or {})}), facts, "digits-7f3k2")


def plan_here(job: Job, base: Path, home: Path, run_id: str) -> Plan:
    """Returns the plan of a job in hosts on this machine."""
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    target, job = SageMakerLocalTarget(name="here"), _sharing(job, home)
    return plan(job, target, read_facts(job, target, base=base, home=home, environ=environ), run_id)


def plan_emulated(job: Job, base: Path, home: Path, run_id: str) -> Plan:
    """Returns the plan of a job for the emulated control plane, whose containers use the interpreter of the tests."""
    fields = {
        **FIELDS,
        "storage": f"s3://{BUCKET}/{zlib.crc32(bytes(home))}",
        "instance": "ml.m5.xlarge",
        "python": sys.executable,
    }
    target, job = SageMakerTarget(**fields), _sharing(job, home)
    return plan(job, target, read_facts(job, target, base=base, home=home, environ=os.environ), run_id)


def _sharing(job: Job, home: Path) -> Job:
    """Adds a folder that the ranks share. Hosts of SageMaker share no folder, but emulated hosts are on this
    machine.
    """
    return job.model_copy(update={"env": {**job.env, "CASE_FOLDER": str(home / "cases")}})


HERE = Way("sagemaker-local", SageMakerLocalEngine, plan_here, frozenset(Can))
EMULATED = Way("sagemaker, emulated", SageMakerEngine, plan_emulated, frozenset(Can))


def request(made: Plan) -> Mapping[str, Any]:
    return made.only(TrainingJobStep).body


@functools.cache
def _shape() -> Any:
    model = Session().get_service_model("sagemaker")
    return model.operation_model("CreateTrainingJob").input_shape


def problems(body: Mapping[str, Any]) -> str:
    """Returns the errors that botocore's model of CreateTrainingJob reports for a request, or ""."""
    return str(ParamValidator().validate(dict(body), _shape()).generate_report())
