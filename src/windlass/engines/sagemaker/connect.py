"""Connects to the service that a plan names: AWS, or its emulation on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from windlass.engines.sagemaker.service import Service
from windlass.errors import MissingExtra
from windlass.plan.steps import ServiceStep


def connect(where: ServiceStep, environ: Mapping[str, str]) -> Service:
    """Connects to the service of a plan's step `service`. Raises MissingExtra, EngineError."""
    if where.engine == "sagemaker-local":
        from windlass.engines.sagemaker.twin.service import Twin

        return Twin(Path(where.home), environ)
    require_boto3()
    from windlass.engines.sagemaker.aws import Aws

    return Aws(where.region, where.account)


def require_boto3() -> None:
    """Raises MissingExtra if the extra `aws` is not installed."""
    if find_spec("boto3") is None:
        raise MissingExtra("targets of kind sagemaker need boto3", "pip install boto3")
