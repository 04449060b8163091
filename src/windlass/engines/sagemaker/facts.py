"""Reads the facts that a plan for SageMaker, or for its emulation on this machine, depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.engines import travel
from windlass.engines.interpreter import find_python
from windlass.engines.sagemaker.connect import require_boto3
from windlass.engines.sources import data_paths, missing_data
from windlass.errors import EngineError
from windlass.runs.machine import user_name

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.targets import SageMakerLocalTarget, SageMakerTarget

    Target = SageMakerTarget | SageMakerLocalTarget


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about this machine, the target and the account that a plan depends on."""

    home: str
    """Folder of this user's records."""
    code: travel.CodeFacts
    user: str
    python: str = ""
    """Absolute path of the script's interpreter on this machine; unused for hosts in AWS."""
    num_cpus: int = 1
    """Number of this machine's cores that this process may use."""
    role: str = ""
    """ARN of the target's role; empty for hosts on this machine, or if AWS did not answer."""
    role_problem: tuple[str, str] | None = None
    """Why the ARN of the role is unknown, and how to fix that."""
    python_found: bool = True
    bad_data: Mapping[str, str] = field(default_factory=dict)
    """Why the source of a data set on this machine cannot be read, by name of the data set; empty for hosts in AWS."""
    base: str = ""
    """Absolute path of the folder to which paths in the job are relative."""
    data_paths: Mapping[str, str] = field(default_factory=dict)
    """Absolute paths of the data sets that are read in place, by name."""

    @property
    def account(self) -> str:
        """Account number from the role's ARN, which is also the account of the training jobs; empty if unknown."""
        return self.role.split(":")[4] if self.role.count(":") >= 5 else ""


def read_facts(job: Job, target: Target, *, base: Path, home: Path, environ: Mapping[str, str]) -> Facts:
    """Reads the facts for a plan of `job` on `target`. Raises MissingExtra without boto3."""
    role, problem_of_role = _role(target)
    is_here, python = target.kind == "sagemaker-local", find_python(job.python or target.python, base, environ)
    return Facts(
        home=str(home),
        code=travel.read_code(job, base, environ),
        user=user_name(),
        python=str(python),
        python_found=not is_here or os.access(python, os.X_OK),
        bad_data=dict(missing_data(job, base)) if is_here else {},
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        role=role,
        role_problem=problem_of_role,
        base=str(base.absolute()),
        data_paths=data_paths(job, base),
    )


def _role(target: Target) -> tuple[str, tuple[str, str] | None]:
    """Returns the ARN of a target's role, and why it is unknown if AWS did not answer.

    AWS is asked only if the target gives the name of the role and not its ARN.
    """
    if target.kind == "sagemaker-local":
        return "", None
    require_boto3()
    if target.role.startswith("arn:"):
        return target.role, None
    from windlass.engines.sagemaker.aws import role_arn

    try:
        return role_arn(target.role, target.region), None
    except EngineError as error:
        return "", (error.message, error.hint)
