"""Interface to SageMaker and CloudWatch Logs: a few calls, with the names and shapes of their API.

AWS implements it, and an emulation on this machine (`twin/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from windlass.errors import EngineError, LoginFailed

Request = Mapping[str, Any]
"""Body of CreateTrainingJob."""
Description = Mapping[str, Any]
"""Response of DescribeTrainingJob. Times are Unix seconds."""

IN_PROGRESS, STOPPING = "InProgress", "Stopping"
COMPLETED, FAILED, STOPPED = "Completed", "Failed", "Stopped"
DELETED: Final = "Deleted"
"""Status of a job that does not exist in the account and region of the run. The API has no such value."""
ENDED: Final = frozenset({COMPLETED, FAILED, STOPPED, DELETED})
"""Final values of `TrainingJobStatus`."""

LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"
"""Log group of all training jobs in CloudWatch Logs, and namespace of their metrics."""

IN_USE, VALIDATION = "ResourceInUse", "ValidationException"
"""Error codes: the name is in use; the request is invalid or names a job that does not exist."""


class Refused(EngineError):
    """The service refused a request."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code
        """Error code of the API, such as `ValidationException`."""
        self.is_repeated = False
        """Whether the same request was sent before without a response: the service may have carried it out."""


class Absent(Refused):
    """The job does not exist in the account and region of the run."""


class Unavailable(EngineError):
    """The service did not answer, or limits the rate of requests. The request may be repeated."""


class NotLoggedIn(Unavailable, LoginFailed):
    """Credentials are missing, expired, or lack the permission. The request may be repeated after another login."""

    is_repeated = False
    """Whether the same request was sent before without a response, as in `Refused`."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of a log stream."""

    lines: Sequence[tuple[int, str]]
    """Unix milliseconds and text (without a newline) of each line, in the order of the stream."""
    token: str
    """Token of the next page; equal to the previous token if there are no new lines."""


class Service(Protocol):
    """Training jobs and their logs. Methods raise Refused and Unavailable."""

    poll_seconds: float
    """Seconds between two polls of a job."""
    logs_are_prompt: bool
    """Whether the logs of a job are complete as soon as it has ended."""
    settle_seconds: float
    """Seconds in which a request without a response may still be carried out. Only after that time can a job count as
    absent."""

    def create(self, request: Request) -> None:
        """Calls CreateTrainingJob. Raises Refused with `IN_USE` if a job of that name exists."""

    def describe(self, name: str) -> Description:
        """Calls DescribeTrainingJob. Raises Absent if the job does not exist, Unavailable if that is unknown."""

    def stop(self, name: str) -> None:
        """Calls StopTrainingJob. Raises Refused with `VALIDATION` if the job has ended or does not exist."""

    def delete(self, name: str) -> None:
        """Deletes an ended job if the service can do so; SageMaker cannot."""

    def log_streams(self, name: str, *, is_over: bool = False) -> list[str]:
        """Returns the names of a job's log streams, one for each start of each host: `NAME/algo-1-1732400000`.

        Streams that began in the last few seconds may be missing, unless `is_over`.
        """

    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        """Returns a page of a stream, from the first line at or after `since` (Unix milliseconds) or from `token`."""

    def close(self) -> None:
        """Closes connections."""
