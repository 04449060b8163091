"""What the twin reads of the body of CreateTrainingJob, which `sagemaker.request` has made. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from windlass.engines.sagemaker.service import Request


def runtime_seconds(request: Request) -> float:
    """How long a job may train, over all its starts."""
    return float(request["StoppingCondition"]["MaxRuntimeInSeconds"])


def wait_seconds(request: Request) -> float | None:
    """How long a job on spot capacity may take from its creation; None for others."""
    found = request["StoppingCondition"].get("MaxWaitTimeInSeconds")
    return None if found is None else float(found)


def checkpoint_path(request: Request) -> PurePosixPath | None:
    """Where a container keeps its checkpoints, relative to /opt/ml; None for a job without."""
    config = request.get("CheckpointConfig")
    return None if config is None else PurePosixPath(config["LocalPath"]).relative_to("/opt/ml")
