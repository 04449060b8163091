"""What the engine asks of SageMaker and CloudWatch Logs: a few calls, with the names and the shapes of their API.

Two services answer them: AWS, and a twin on this machine (`twin/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from windlass.errors import EngineError, LoginFailed

Request = Mapping[str, Any]
"""The body of CreateTrainingJob."""
Description = Mapping[str, Any]
"""The answer of DescribeTrainingJob. Times are Unix seconds."""

IN_PROGRESS, STOPPING = "InProgress", "Stopping"
COMPLETED, FAILED, STOPPED = "Completed", "Failed", "Stopped"
DELETED: Final = "Deleted"
"""No value of the API: there is no job of this name, in the account and region of the run."""
ENDED: Final = frozenset({COMPLETED, FAILED, STOPPED, DELETED})
"""Values of `TrainingJobStatus` that no other follows."""

LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"
"""Of CloudWatch Logs, and the namespace of the metrics: what all training jobs of an account write to."""

IN_USE, VALIDATION = "ResourceInUse", "ValidationException"
"""Codes of errors: a name that is taken, a request that is wrong or names no job."""


class Refused(EngineError):
    """The service has refused a request."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code
        """As the API has it: `ValidationException`."""
        self.is_repeated = False
        """Whether the same request was sent before, without an answer: the service may have carried that out."""


class Absent(Refused):
    """There is no such job, in the account and region of the run."""


class Unavailable(EngineError):
    """The service did not answer, or limits the rate of requests: the same may be requested again."""


class NotLoggedIn(Unavailable, LoginFailed):
    """There are no credentials, they have expired, or they are of a login that may not ask: after another login the
    same may be requested again.
    """

    is_repeated = False
    """See `Refused`."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Some lines of a log stream."""

    lines: Sequence[tuple[int, str]]
    """When each was written, in Unix milliseconds, and its text without a newline; in the order of the stream."""
    token: str
    """For what follows; the same as before where nothing new was there."""


class Service(Protocol):
    """Training jobs and their logs. Methods raise Refused and Unavailable."""

    poll_seconds: float
    """Between two looks at a job."""
    logs_are_prompt: bool
    """Whether the logs of a job that has ended are complete."""
    settle_seconds: float
    """How long a request without an answer may still be carried out: until then, no absence of a job is believed."""

    def create(self, request: Request) -> None:
        """CreateTrainingJob. Raises Refused with `IN_USE` where there is a job of that name."""

    def describe(self, name: str) -> Description:
        """DescribeTrainingJob. Raises Absent where there is none, and Unavailable where that is not known."""

    def stop(self, name: str) -> None:
        """StopTrainingJob. Raises Refused with `VALIDATION` where the job has ended, or there is none."""

    def delete(self, name: str) -> None:
        """Remove what the service keeps of an ended job, where it can: SageMaker keeps its jobs."""

    def log_streams(self, name: str, *, is_over: bool = False) -> list[str]:
        """The names of the log streams of a job, one for each start of each host: `NAME/algo-1-1732400000`.

        Those that are newer than some seconds may be missing, unless `is_over`.
        """

    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        """A page of a stream: from its first line at or after `since` (Unix milliseconds), or from `token` on."""

    def close(self) -> None:
        """Release connections."""
