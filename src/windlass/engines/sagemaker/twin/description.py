"""Records the states of a job with their times, in the form of DescribeTrainingJob."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from windlass.engines.sagemaker.service import COMPLETED, FAILED, IN_PROGRESS, STOPPED, STOPPING
from windlass.engines.sagemaker.twin.job import JobFolder

STARTING, DOWNLOADING, TRAINING, UPLOADING = "Starting", "Downloading", "Training", "Uploading"
INTERRUPTED, RESTARTING = "Interrupted", "Restarting"
RUNTIME_EXCEEDED, WAIT_EXCEEDED = "MaxRuntimeExceeded", "MaxWaitTimeExceeded"
MESSAGES: Final = {
    STARTING: "Starting the training job",
    RESTARTING: "Restarting the training job after an interruption",
    DOWNLOADING: "Downloading input data",
    TRAINING: "Training in progress",
    INTERRUPTED: "The spot capacity was reclaimed",
    STOPPING: "Stopping the training job",
    UPLOADING: "Uploading generated training model",
    COMPLETED: "Training job completed",
    STOPPED: "Training job stopped",
    RUNTIME_EXCEEDED: "Training job runtime exceeded MaxRuntimeInSeconds",
    WAIT_EXCEEDED: "Training job exceeded MaxWaitTimeInSeconds",
}
"""Status messages by `SecondaryStatus`."""


class StateRecorder:
    """Writes the state of a job. Only the process that has the job's lock may create one."""

    def __init__(self, job: JobFolder) -> None:
        """Reads the last state. Raises OSError."""
        self._job = job
        self._state = job.state()
        self._trained = float(self._state.get("TrainingTimeInSeconds", 0))
        self._since: float | None = None
        """Unix seconds at which the containers of this start began; None while no container runs."""

    def begin(self, hosts: dict[str, Any]) -> None:
        """Writes the first state; `hosts` describes the isolation and the names of the hosts. Raises OSError."""
        created = self._job.settings().created
        self._state = {
            "TrainingJobStatus": IN_PROGRESS,
            "SecondaryStatusTransitions": [],
            "CreationTime": created,
            "WindlassHosts": hosts,
        }
        self.step(STARTING)

    def step(self, secondary: str, status: str = "", message: str = "", **fields: Any) -> None:
        """Writes a transition to another state. Raises OSError."""
        now = time.time()
        transitions = self._state["SecondaryStatusTransitions"]
        if transitions:
            transitions[-1]["EndTime"] = now
        said = message or MESSAGES[secondary]
        transitions.append({"Status": secondary, "StartTime": now, "StatusMessage": said})
        self._state |= {"SecondaryStatus": secondary, "LastModifiedTime": now, **fields}
        if status:
            self._state["TrainingJobStatus"] = status
        self._job.write_state(self._state)

    def train(self) -> None:
        """Writes that the containers have started. Raises OSError."""
        self._since = time.time()
        self._state.setdefault("TrainingStartTime", self._since)
        self.step(TRAINING)

    def end_training(self) -> None:
        """Adds the training time after the containers have ended; the next `step` writes it."""
        if self._since is not None:
            self._trained += time.time() - self._since
            self._since = None
            seconds = math.ceil(self._trained)
            self._state |= {
                "TrainingEndTime": time.time(),
                "TrainingTimeInSeconds": seconds,
                "BillableTimeInSeconds": seconds,
            }

    def fail(self, reason: str, **fields: Any) -> None:
        """Writes that the job has failed. Raises OSError."""
        self.end_training()
        self.step(FAILED, FAILED, reason, FailureReason=reason, **fields)

    def trained_seconds(self) -> float:
        """Returns the seconds of training in all starts together."""
        return self._trained + (0.0 if self._since is None else time.time() - self._since)

    def waited_seconds(self) -> float:
        """Returns the seconds since the creation of the job."""
        return time.time() - float(self._state["CreationTime"])
