"""SageMaker and CloudWatch Logs of AWS, by botocore, with the credentials that its own tools find."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from botocore.session import Session

from windlass.engines.sagemaker.service import (
    LOG_GROUP,
    VALIDATION,
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
"""Between two lists of the log streams of a job: a host has one more where SageMaker starts it again."""
RETRIES: Final = Config(retries={"mode": "adaptive", "max_attempts": 4}, connect_timeout=10, read_timeout=30)
PASSING: Final = (
    "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequestsException", "InternalFailure",
    "InternalServerException", "ServiceUnavailable", "ServiceUnavailableException",
)  # fmt: skip
LOGIN: Final = (
    "ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId", "UnrecognizedClientException",
    "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure",
)  # fmt: skip
NO_LOGIN: Final = (
    NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError, SSOError,
    ProfileNotFound,
)  # fmt: skip
LOGIN_HINT: Final = "log in again: aws sso login, or aws configure; see: aws sts get-caller-identity"


class Aws(Service):
    """Training jobs of one account in one region."""

    poll_seconds = 2.0
    logs_are_prompt = False

    def __init__(self, region: str) -> None:
        """Raises NotLoggedIn for a profile that is not there."""
        self._session, self._region = Session(), region
        self._training = self._client("sagemaker")
        self._streams: dict[str, tuple[float, list[str]]] = {}
        """By job: when its streams were listed, in monotonic seconds, and their names."""

    @functools.cached_property
    def _logs(self) -> Any:
        """Not before a job is there that has logs: a client takes time to make."""
        return self._client("logs")

    def _client(self, service: str) -> Any:
        """Of botocore: boto3 imports and reads what S3 and its own objects need first."""
        return answered(lambda: self._session.create_client(service, region_name=self._region, config=RETRIES))

    def create(self, request: Request) -> None:
        """See `Service`."""
        answered(lambda: self._training.create_training_job(**request))

    def describe(self, name: str) -> Description:
        """See `Service`."""
        found: Description = answered(lambda: self._training.describe_training_job(TrainingJobName=name))
        return found

    def stop(self, name: str) -> None:
        """See `Service`."""
        answered(lambda: self._training.stop_training_job(TrainingJobName=name))

    def delete(self, name: str) -> None:
        """See `Service`."""

    def tagged(self, tag: str, value: str | None = None) -> list[Description]:
        """The training jobs of the account that have a tag, newest first; as the index has them, seconds behind.

        Raises Refused, Unavailable.
        """
        name: dict[str, str] = {"Name": f"Tags.{tag}"}
        wanted = {**name, "Operator": "Exists"} if value is None else {**name, "Operator": "Equals", "Value": value}
        pages = self._training.get_paginator("search").paginate(
            Resource="TrainingJob", SearchExpression={"Filters": [wanted]}, SortBy="CreationTime",
            SortOrder="Descending",
        )  # fmt: skip
        return answered(lambda: [one["TrainingJob"] for page in pages for one in page["Results"]])

    def log_streams(self, name: str, *, is_over: bool = False) -> list[str]:
        """See `Service`; the list may be `STREAMS_SECONDS` old."""
        at, known = self._streams.get(name, (float("-inf"), []))
        if known and not is_over and time.monotonic() - at < STREAMS_SECONDS:
            return known
        pages = self._logs.get_paginator("describe_log_streams")
        try:
            found = answered(
                lambda: [
                    str(one["logStreamName"])
                    for page in pages.paginate(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{name}/")
                    for one in page["logStreams"]
                ]
            )
        except Refused as error:
            if error.code != "ResourceNotFoundException":  # no job of the account has logged anything yet
                raise
            found = []
        self._streams[name] = (time.monotonic(), found)
        return found

    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        """See `Service`."""
        which: Mapping[str, Any] = {"startTime": since} if token is None else {"nextToken": token}
        page = answered(
            lambda: self._logs.get_log_events(logGroupName=LOG_GROUP, logStreamName=stream, startFromHead=True, **which)
        )
        lines = [(int(one["timestamp"]), str(one["message"])) for one in page["events"]]
        return LogPage(lines, str(page["nextForwardToken"]))

    def close(self) -> None:
        """See `Service`."""
        self._training.close()
        if "_logs" in vars(self):
            self._logs.close()


def partition(region: str) -> str:
    """The part of AWS that a region is in, as its ARNs begin."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


@functools.cache
def account(region: str) -> str:
    """The number of the account of these credentials. Raises Refused, Unavailable."""
    client = answered(lambda: Session().create_client("sts", region_name=region, config=RETRIES))
    return str(answered(lambda: client.get_caller_identity()["Account"]))


def role_arn(role: str, region: str) -> str:
    """The ARN of a role that may be named by its name in this account. Raises Refused, Unavailable."""
    return role if role.startswith("arn:") else f"arn:{partition(region)}:iam::{account(region)}:role/{role}"


def answered(call: Callable[[], T]) -> T:
    """What a call gives; its errors as ours."""
    try:
        return call()
    except ClientError as error:
        raise _ours(error) from error
    except NO_LOGIN as error:
        raise NotLoggedIn(f"there are no credentials for AWS: {error}", LOGIN_HINT) from error
    except ParamValidationError as error:
        raise Refused(VALIDATION, f"boto3 refuses the request: {error}", "upgrade boto3") from error
    except BotoCoreError as error:
        raise Unavailable(f"AWS does not answer: {error}", "is there a network, and is the region right?") from error


def _ours(error: ClientError) -> Refused | Unavailable:
    code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
    what = f"{error.operation_name}: {message} ({code})"
    if code in LOGIN:
        return NotLoggedIn(f"AWS does not accept the credentials: {what}", LOGIN_HINT)
    if code in PASSING or error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
        return Unavailable(f"AWS cannot answer now: {what}")
    return Refused(code, what)
