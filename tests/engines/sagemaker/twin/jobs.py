"""Requests to the twin, and waiting for what its jobs do."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.helpers.until import BOUND_SECONDS, until

from windlass.engines.sagemaker.service import ENDED
from windlass.engines.sagemaker.twin.service import Twin
from windlass.worker import process

ROLE = "arn:aws:iam::000000000000:role/training"
NO_LIMIT = {"MaxRuntimeInSeconds": 3600}
ML = "${SAGEMAKER_BASE_DIR:-/opt/ml}"
"""In a script: /opt/ml, wherever it is."""


def request(home: Path, name: str, script: str, *, count: int = 1, **fields: Any) -> dict[str, Any]:
    """A job whose containers run a script of bash, with outputs in `home/store`."""
    path = home / f"{name}.sh"  # an argument of a container has at most 256 characters
    if home.is_dir():
        path.write_text(script)
    return {
        "TrainingJobName": name,
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": "image",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["bash"],
            "ContainerArguments": [str(path)],
        },
        "OutputDataConfig": {"S3OutputPath": f"file://{home}/store"},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": count, "VolumeSizeInGB": 1},
        "StoppingCondition": NO_LIMIT,
        **fields,
    }


def ended(twin: Twin, name: str, seconds: float = BOUND_SECONDS) -> Mapping[str, Any]:
    """The description of a job that has ended; AssertionError after `seconds`."""
    return (
        until(
            lambda: found if (found := twin.describe(name))["TrainingJobStatus"] in ENDED else None,
            lambda: (twin.describe(name), output(twin, name)),
            seconds,
        )
        or {}
    )


def output(twin: Twin, name: str, host: str = "algo-") -> list[str]:
    """All lines that a job's containers have written so far, by the order of their streams."""
    streams = [one for one in twin.log_streams(name) if one.startswith(f"{name}/{host}")]
    return [line for stream in streams for _, line in twin.read_log(stream).lines]


def says(twin: Twin, name: str, line: str, times: int = 1) -> None:
    """Wait until the containers have written a line so many times."""
    until(lambda: output(twin, name).count(line) >= times, lambda: (twin.describe(name), output(twin, name)))


def steps(found: Mapping[str, Any]) -> list[str]:
    """The states through which a job has gone."""
    return [one["Status"] for one in found["SecondaryStatusTransitions"]]


def manager_pid(home: Path, name: str) -> int:
    """The manager of a job."""
    folder = str(home / "sagemaker-local" / name).encode()

    def found() -> int:
        for line in process.all_processes():
            try:
                words = Path(f"/proc/{line.pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"windlass.engines.sagemaker.twin" in words and folder in words:
                return line.pid
        return 0

    return until(found)


def kill(pid: int) -> None:
    """SIGKILL."""
    os.kill(pid, signal.SIGKILL)
