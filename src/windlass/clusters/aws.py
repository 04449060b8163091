"""Creates the boto3 clients used by `windlass.clusters`, and maps their errors to errors with hints."""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from windlass.engines.aws_codes import DENIED_CODES, LOGIN_CODES, LOGIN_HINT
from windlass.errors import EngineError, LoginFailed, MissingExtra, near

REGION: Final = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}")
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 60
ATTEMPTS: Final = 6
"""Attempts per call in botocore's retry mode `standard`: the many parallel calls of an audit are easily throttled."""
POOL_CONNECTIONS: Final = 32
READING: Final = ("Describe", "Get", "List")
"""Prefixes of operations whose successful response has a body."""
GONE_CODES: Final = frozenset({
    "NoSuchEntity", "NoSuchBucket", "NoSuchTagSet", "NoSuchTagSetError", "ResourceNotFoundException",
    "ResourceNotFound", "NotFoundException", "RepositoryNotFoundException", "FileSystemNotFound", "BackupNotFound",
    "LoadBalancerNotFound", "TargetGroupNotFound", "AccessPointNotFound", "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue", "ServerSideEncryptionConfigurationNotFoundError", "404",
})  # fmt: skip
"""Error codes for an object that does not exist. EC2's codes end in `.NotFound`; a HEAD response has only the
status."""
PREFIXES: Final = {
    "elbv2": "elasticloadbalancing",
    "elb": "elasticloadbalancing",
    "efs": "elasticfilesystem",
}
"""IAM service prefixes that differ from the name of the boto3 client."""
ACTIONS: Final = {
    "s3:ListBuckets": "s3:ListAllMyBuckets",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "budgets:DescribeBudgets": "budgets:ViewBudget",
}
"""IAM actions whose name differs from the operation that they allow, by operation."""


class AwsError(EngineError):
    """AWS refused a call or did not answer it. `action` is the IAM action; `code` is the error code, possibly empty."""

    def __init__(self, message: str, hint: str = "", *, action: str = "", code: str = "") -> None:
        super().__init__(message, hint)
        self.action, self.code = action, code


class NotLoggedIn(AwsError, LoginFailed):
    """Credentials are missing, or AWS does not accept them."""


class AccessDenied(AwsError):
    """The credentials do not allow the action."""


class NotThere(AwsError):
    """The object named in a call does not exist."""


class NoAnswer(AwsError):
    """AWS was unreachable or failed internally; the same call may succeed later."""


class NoEndpoint(NoAnswer):
    """No connection could be opened: the service may not exist in the region. Timeouts and malformed responses raise
    NoAnswer.
    """


@dataclass(frozen=True, slots=True)
class Identity:
    """The AWS identity of the credentials."""

    account_id: str
    """Account number, 12 digits."""
    arn: str
    """ARN of the user or role."""


class Aws:
    """Clients for one account in one region. Thread-safe."""

    def __init__(
        self,
        region: str = "",
        *,
        environ: Mapping[str, str] | None = None,
        read_seconds: float = READ_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        """Reads missing settings from AWS's usual variables in `environ` (default: this process's), then from AWS's
        files.

        Raises MissingExtra without boto3, NotLoggedIn for an unknown profile, AwsError if no region is configured.
        """
        if find_spec("boto3") is None:
            raise MissingExtra("clusters on AWS need boto3", "pip install boto3")
        import boto3  # boto3 is slow to import, and only commands that use AWS need it

        env = os.environ if environ is None else environ
        self._endpoint = env.get("AWS_ENDPOINT_URL", "")
        self._read_seconds, self._attempts = read_seconds, attempts
        self.num_calls = 0
        """Calls made so far; repeated attempts of one call are not counted."""
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._clients: dict[str, Any] = {}
        with aws_errors("read the settings of AWS"):
            self._session = boto3.Session(profile_name=env.get("AWS_PROFILE") or None, **_keys(env))
            self.region: str = _region(
                region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or self._session.region_name or ""
            )

    def client(self, service: str) -> Any:
        """Returns the boto3 client of a service, created on first use. Raises AwsError."""
        from botocore.config import Config

        with self._lock:  # boto3 clients are thread-safe, but the session that creates them is not
            if service not in self._clients:
                config = Config(
                    retries={"mode": "standard", "max_attempts": self._attempts},
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=self._read_seconds,
                    max_pool_connections=POOL_CONNECTIONS,
                    user_agent_extra="windlass",
                    # Emulators and VPC endpoints do not resolve host names that contain a bucket name.
                    s3={"addressing_style": "path"} if self._endpoint else None,
                )
                with aws_errors(f"make a client of {service}"):
                    made = self._session.client(
                        service, region_name=self.region, endpoint_url=self._endpoint or None, config=config
                    )
                made.meta.events.register("before-call", self._count)
                made.meta.events.register("before-parse", _refuse_other_answers)
                self._clients[service] = made
            return self._clients[service]

    def _count(self, **_: Any) -> None:
        with self._counting:
            self.num_calls += 1

    @functools.cached_property
    def identity(self) -> Identity:
        """Identity of the credentials. Raises NotLoggedIn, AwsError."""
        with aws_errors("ask whose credentials these are"):
            found = self.client("sts").get_caller_identity()
        return Identity(str(found["Account"]), str(found["Arn"]))

    def offers(self, service: str) -> bool:
        """Whether boto3's own endpoint table lists the service in this region; newer regions may be missing."""
        return self.region in self._session.get_available_regions(service, partition_name=partition(self.region))

    def close(self) -> None:
        """Closes the connections of all clients."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def __enter__(self) -> Aws:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_other_answers(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """Raises ResponseParserError for a response that did not come from AWS, such as the login page of a network.

    Otherwise botocore would parse the page as an empty list.
    """
    from botocore.parsers import ResponseParserError

    if operation_model.has_streaming_output or operation_model.http.get("method") == "HEAD":
        return
    body, status = bytes(response_dict.get("body") or b"").lstrip(), response_dict["status_code"]
    is_page = body.startswith(b"<") and any(tag in body[:1000].lower() for tag in (b"<html", b"<!doctype"))
    is_missing = status == 200 and not body and operation_model.name.startswith(READING)
    is_json = operation_model.service_model.metadata.get("protocol") in ("json", "rest-json")
    is_other = status == 200 and is_json and bool(body) and not body.startswith(b"{")
    if is_page or is_missing or is_other:
        what = "a page of HTML" if is_page else "nothing" if is_missing else "something that is not JSON"
        raise ResponseParserError(f"{operation_model.name} was answered by {what} (status {status})")


def partition(region: str) -> str:
    """Returns the ARN partition of a region: `aws`, `aws-cn` or `aws-us-gov`."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def iam_action(client: str, operation: str) -> str:
    """Returns the IAM action that allows a client's operation: `elbv2`, `DescribeTags` →
    `elasticloadbalancing:DescribeTags`.
    """
    name = f"{PREFIXES.get(client, client)}:{operation}"
    return ACTIONS.get(name, name)


@contextmanager
def aws_errors(doing: str, action: str = "") -> Iterator[None]:
    """Maps botocore errors to Windlass errors; `doing` completes the sentence "cannot …".

    Raises MissingExtra for a missing optional part of botocore, else NotLoggedIn, AccessDenied, NotThere, NoAnswer or
    AwsError.
    """
    from botocore import exceptions as found
    from botocore.parsers import ResponseParserError

    try:
        yield
    except found.MissingDependencyException as error:
        raise MissingExtra(f"cannot {doing}: {error}", "pip install 'botocore[crt]'") from error
    except found.ClientError as error:
        raise _of_client(error, doing, action) from error
    except found.NoRegionError as error:
        raise AwsError(f"cannot {doing}: no region is set", _REGION_HINT, action=action) from error
    except (
        found.NoCredentialsError,
        found.PartialCredentialsError,
        found.CredentialRetrievalError,
        found.TokenRetrievalError,
        found.SSOError,
        found.ProfileNotFound,
    ) as error:
        message = f"cannot {doing}: there are no credentials for AWS: {error}"
        raise NotLoggedIn(message, LOGIN_HINT, action=action) from error
    except (found.ParamValidationError, found.DataNotFoundError, found.UnknownServiceError) as error:
        raise AwsError(f"cannot {doing}: boto3 refuses it: {error}", "upgrade boto3", action=action) from error
    except (found.BotoCoreError, ResponseParserError) as error:
        hint = "is there a network, and does the region exist? see: aws ec2 describe-regions"
        kind = NoEndpoint if isinstance(error, found.EndpointConnectionError) else NoAnswer
        raise kind(f"cannot {doing}: AWS does not answer: {error}", hint, action=action) from error


_REGION_HINT: Final = "set region in cluster.yaml or AWS_REGION, such as us-east-1"


def _of_client(error: Any, doing: str, action: str) -> AwsError:
    body = error.response.get("Error", {})
    code, message = str(body.get("Code", "")), str(body.get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    what = f"cannot {doing}: {error.operation_name}: {message} ({code})"
    if code in LOGIN_CODES:
        return NotLoggedIn(f"AWS does not accept the credentials: {what}", LOGIN_HINT, action=action, code=code)
    if code in DENIED_CODES or (status == 403 and "authoriz" in message.lower()):
        named = re.search(r"perform: ([\w-]+:\w+)", message)
        missing = named[1] if named else action or error.operation_name
        return AccessDenied(what, f"allow {missing} to the credentials' user or role", action=action, code=code)
    # a numeric code comes from a proxy: AWS's error codes are names
    if code == str(status) == "404" and not error.operation_name.startswith("Head"):
        return NoAnswer(f"{what}: this is not an answer of AWS", "is a proxy in between?", action=action, code=code)
    is_gone = code in GONE_CODES or code.endswith((".NotFound", "NotFoundFault"))
    # SageMaker reports missing objects as ValidationException
    if is_gone or (code == "ValidationException" and message.startswith("Could not find")):
        return NotThere(what, action=action, code=code)
    if status >= 500 or code in (
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequestsException",
    ):
        return NoAnswer(what, "try again later", action=action, code=code)
    return AwsError(what, action=action, code=code)


def _keys(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the access keys in `env` as arguments for boto3, which by itself reads only `os.environ`."""
    names = {
        "aws_access_key_id": "AWS_ACCESS_KEY_ID",
        "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "aws_session_token": "AWS_SESSION_TOKEN",
    }
    if env is os.environ or not env.get("AWS_ACCESS_KEY_ID"):
        return {}
    return {key: env[name] for key, name in names.items() if env.get(name)}


def _region(region: str) -> str:
    if not region:
        raise AwsError("no region of AWS is set", _REGION_HINT)
    if not REGION.fullmatch(region):
        import boto3

        known = boto3.Session().get_available_regions("ec2")
        hint = near(region, known) or _REGION_HINT
        raise AwsError(f"{region!r} is not the name of a region of AWS", hint)
    return region
