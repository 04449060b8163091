"""Client for SageMaker and CloudWatch Logs that uses botocore and the default AWS credentials."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigParseError,
    CredentialRetrievalError,
    InvalidConfigError,
    LoginError,
    MissingDependencyException,
    NoAuthTokenError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)
from botocore.parsers import ResponseParserError
from botocore.session import Session

from windlass.compat import override
from windlass.engines.aws_codes import DENIED_CODES, LOGIN_CODES, LOGIN_HINT
from windlass.engines.sagemaker.service import (
    LOG_GROUP,
    VALIDATION,
    Absent,
    Description,
    LogPage,
    NotLoggedIn,
    Refused,
    Request,
    Service,
    Unavailable,
)

T = TypeVar("T")

STREAMS_SECONDS: Final = 10.0
"""Seconds between two listings of a job's log streams. Each restart of a host by SageMaker adds a stream."""
RETRIES: Final = Config(retries={"mode": "adaptive", "max_attempts": 4}, connect_timeout=10, read_timeout=30)
PASSING: Final = (
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequestsException",
    "InternalFailure",
    "InternalServerException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
)
NO_LOGIN: Final = (
    ConfigParseError, CredentialRetrievalError, InvalidConfigError, LoginError, MissingDependencyException,
    NoAuthTokenError, NoCredentialsError, PartialCredentialsError, ProfileNotFound, RefreshWithMFAUnsupportedError,
    SSOError, TokenRetrievalError, UnknownCredentialError,
)  # fmt: skip
ABSENT: Final = ("ResourceNotFound", "ResourceNotFoundException")
OTHER_HINT: Final = "use the login that started the run: AWS_PROFILE; see: aws sts get-caller-identity"
SETTLE_SECONDS: Final = 30.0


class Aws(Service):
    """Training jobs of one account in one region."""

    poll_seconds = 2.0
    logs_are_prompt = False
    settle_seconds = SETTLE_SECONDS

    def __init__(self, region: str, account: str = "", *, config: Config = RETRIES) -> None:
        """Creates the clients. `account` is the account number of the run, if known: with credentials of another
        account, a job that is not found does not count as absent.

        Raises NotLoggedIn for a missing profile.
        """
        self._session, self._region, self._account, self._config = Session(), region, account, config
        self._training = self._client("sagemaker")
        self._streams: dict[str, tuple[float, list[str]]] = {}
        """Time of the last listing in monotonic seconds, and the names of the log streams, by job."""

    @functools.cached_property
    def _logs(self) -> Any:
        """Client for CloudWatch Logs, created when first needed because its creation takes time."""
        return self._client("logs")

    def _client(self, service: str) -> Any:
        """Creates a client with botocore, which is faster to import than boto3."""
        return checked_call(lambda: self._session.create_client(service, region_name=self._region, config=self._config))

    @override
    def create(self, request: Request) -> None:
        sent: list[object] = []

        def note_try(request: object, **_: object) -> None:
            sent.append(request)

        events, name = self._training.meta.events, "before-send.sagemaker.CreateTrainingJob"
        events.register(name, note_try)
        try:
            checked_call(lambda: self._training.create_training_job(**request)["TrainingJobArn"])
        except NotLoggedIn as error:
            # botocore signs each try anew: without keys for the next try, the response to the one before is unknown
            if not isinstance(error.__cause__, ClientError):
                error.is_repeated = bool(sent)
            raise
        finally:
            events.unregister(name, note_try)

    @override
    def describe(self, name: str) -> Description:
        try:
            found: Description = checked_call(lambda: self._training.describe_training_job(TrainingJobName=name))
        except Refused as error:
            if error.code in ABSENT or (error.code == VALIDATION and "not found" in error.message):
                self._require_account(name)
                raise Absent(error.code, error.message) from error
            kind, hint = (NotLoggedIn, OTHER_HINT) if error.code in DENIED_CODES else (Unavailable, "")
            raise kind(f"the status of training job {name} is unknown: {error.message}", hint) from error
        if found.get("TrainingJobName") != name or "TrainingJobStatus" not in found:
            raise Unavailable(*NOT_AWS)
        return found

    def _require_account(self, name: str) -> None:
        """Raises NotLoggedIn if the credentials belong to another account than the run."""
        found = checked_call(lambda: self._client("sts").get_caller_identity()["Account"])
        if self._account and str(found) != self._account:
            words = f"the login is of account {found}, and training job {name} is in account {self._account}"
            raise NotLoggedIn(words, OTHER_HINT)

    @override
    def stop(self, name: str) -> None:
        checked_call(lambda: self._training.stop_training_job(TrainingJobName=name))

    @override
    def delete(self, name: str) -> None:
        return

    def tagged(self, tag: str, value: str | None = None) -> list[Description]:
        """Returns the training jobs of the account that have a tag, newest first. The search index lags by seconds.

        Raises Refused, Unavailable.
        """
        name: dict[str, str] = {"Name": f"Tags.{tag}"}
        wanted = {**name, "Operator": "Exists"} if value is None else {**name, "Operator": "Equals", "Value": value}
        pages = self._training.get_paginator("search").paginate(
            Resource="TrainingJob",
            SearchExpression={"Filters": [wanted]},
            SortBy="CreationTime",
            SortOrder="Descending",
        )
        return checked_call(lambda: [one["TrainingJob"] for page in pages for one in page["Results"]])

    def log_streams(self, name: str, *, is_over: bool = False) -> list[str]:
        """Returns the names of a job's log streams; the list may be `STREAMS_SECONDS` old unless `is_over`."""
        at, known = self._streams.get(name, (float("-inf"), []))
        if known and not is_over and time.monotonic() - at < STREAMS_SECONDS:
            return known
        pages = self._logs.get_paginator("describe_log_streams")
        try:
            found = checked_call(
                lambda: [
                    str(one["logStreamName"])
                    for page in pages.paginate(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/")
                    for one in page["logStreams"]
                ]
            )
        except Refused as error:
            if error.code != "ResourceNotFoundException":  # no job of the account has written a log yet
                raise
            found = []
        self._streams[name] = (time.monotonic(), found)
        return found

    @override
    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        which: Mapping[str, Any] = {"startTime": since} if token is None else {"nextToken": token}

        def read() -> LogPage:
            page = self._logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **which)
            lines = [(int(one["timestamp"]), str(one["message"])) for one in page["events"]]
            return LogPage(lines, str(page["nextForwardToken"]))

        return checked_call(read)

    @override
    def close(self) -> None:
        self._training.close()
        if "_logs" in vars(self):
            self._logs.close()


def partition(region: str) -> str:
    """Returns the AWS partition of a region, as in ARNs: `aws`, `aws-cn` or `aws-us-gov`."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


@functools.cache
def account(region: str) -> str:
    """Returns the account number of the current credentials. Raises Refused, Unavailable."""
    client = checked_call(lambda: Session().create_client("sts", region_name=region, config=RETRIES))
    return str(checked_call(lambda: client.get_caller_identity()["Account"]))


def role_arn(role: str, region: str) -> str:
    """Returns the ARN of a role, which may be given by its name in this account. Raises Refused, Unavailable."""
    return role if role.startswith("arn:") else f"arn:{partition(region)}:iam::{account(region)}:role/{role}"


def checked_call(call: Callable[[], T]) -> T:
    """Returns the result of a call, and converts botocore's errors to Refused, Unavailable or NotLoggedIn."""
    try:
        return call()
    except ClientError as error:
        raise _converted(error) from error
    except ParamValidationError as error:
        raise Refused(VALIDATION, f"boto3 refuses the request: {error}", "upgrade boto3") from error
    except (KeyError, ResponseParserError) as error:
        raise Unavailable(*NOT_AWS) from error
    except NO_LOGIN as error:
        raise NotLoggedIn(f"there are no credentials for AWS: {error}", LOGIN_HINT) from error
    except BotoCoreError as error:
        raise Unavailable(f"AWS does not answer: {error}", "is there a network, and is the region right?") from error
    # Errors of a token file or a credential_process, which botocore passes through.
    except (OSError, ValueError) as error:
        raise NotLoggedIn(f"the credentials for AWS cannot be read: {error}", LOGIN_HINT) from error


NOT_AWS: Final = ("the response is not from AWS", "a proxy or a login page of the network may be in between")
"""Message and hint for a response that lacks the required fields of its operation."""


def _converted(error: ClientError) -> Refused | Unavailable:
    code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
    what, metadata = f"{error.operation_name}: {message} ({code})", error.response.get("ResponseMetadata", {})
    status = metadata.get("HTTPStatusCode", 0)
    if code in PASSING or status >= 500:
        return Unavailable(f"AWS cannot answer now: {what}")
    if code == str(status) and not error.operation_name.startswith("Head"):  # error codes of AWS are names, not numbers
        return Unavailable(f"{NOT_AWS[0]}: {what}", NOT_AWS[1])
    found = (
        NotLoggedIn(f"AWS does not accept the credentials: {what}", LOGIN_HINT)
        if code in LOGIN_CODES
        else Refused(code, what)
    )
    found.is_repeated = metadata.get("RetryAttempts", 0) > 0
    return found
