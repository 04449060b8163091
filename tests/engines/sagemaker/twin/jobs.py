"""Creates requests for the emulation, and waits for events of its jobs."""

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
"""/opt/ml or its replacement, in a shell script."""


def request(home: Path, name: str, script: str, *, count: int = 1, **fields: Any) -> dict[str, Any]:
    """Returns the request of a job whose containers run a bash script, with outputs in `home/store`."""
    path = home / f"{name}.sh"  # a file, because arguments of a container have at most 256 characters
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
    """Waits until a job has ended and returns its description; AssertionError after `seconds`."""
    return (
        until(
            lambda: found if (found := twin.describe(name))["TrainingJobStatus"] in ENDED else None,
            lambda: (twin.describe(name), output(twin, name)),
            seconds,
        )
        or {}
    )


def output(twin: Twin, name: str, host: str = "algo-") -> list[str]:
    """Returns all lines that a job's containers have written so far, in the order of their streams."""
    streams = [one for one in twin.log_streams(name) if one.startswith(f"{name}/{host}")]
    return [line for stream in streams for _, line in twin.read_log(stream).lines]


def says(twin: Twin, name: str, line: str, times: int = 1) -> None:
    """Waits until the containers have written a line `times` times."""
    until(lambda: output(twin, name).count(line) >= times, lambda: (twin.describe(name), output(twin, name)))


def steps(found: Mapping[str, Any]) -> list[str]:
    """Returns the secondary statuses of a job in order."""
    return [one["Status"] for one in found["SecondaryStatusTransitions"]]


def manager_pid(home: Path, name: str) -> int:
    """Returns the pid of a job's manager."""
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
    """Sends SIGKILL to a process."""
    os.kill(pid, signal.SIGKILL)
