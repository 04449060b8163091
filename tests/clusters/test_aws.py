"""Region and credentials are found, and errors of botocore are mapped to Windlass errors."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from windlass.clusters.aws import (
    AccessDenied,
    Aws,
    AwsError,
    NoAnswer,
    NotLoggedIn,
    NotThere,
    aws_errors,
    iam_action,
    partition,
)
from windlass.errors import EngineError, MissingExtra

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@contextmanager
def answering(status: int, body: Mapping[str, Any] | bytes) -> Iterator[str]:
    """Yields the URL of a local server that answers every call with the same JSON or bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Suppresses request logs."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def failure(status: int, code: str, message: str) -> AwsError:
    """Returns the Windlass error for an AWS error response."""
    with (
        answering(status, {"__type": code, "message": message}) as url,
        Aws(environ={**KEYS, "AWS_ENDPOINT_URL": url}) as aws,
        pytest.raises(AwsError) as raised,
        aws_errors("list the repositories", "ecr:DescribeRepositories"),
    ):
        aws.client("ecr").describe_repositories()
    return raised.value


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "AccessDeniedException", AccessDenied),
        (403, "UnauthorizedOperation", AccessDenied),
        (400, "ExpiredTokenException", NotLoggedIn),
        (400, "UnrecognizedClientException", NotLoggedIn),
        (403, "InvalidClientTokenId", NotLoggedIn),
        (400, "RepositoryNotFoundException", NotThere),
        (400, "InvalidVolume.NotFound", NotThere),
        (400, "InvalidParameterException", AwsError),
    ],
)
def test_aws_error_codes_map_to_exceptions(status: int, code: str, kind: type[AwsError]) -> None:
    error = failure(status, code, "no")
    assert type(error) is kind
    assert (error.code, error.action) == (code, "ecr:DescribeRepositories")
    assert error.message.endswith(f"list the repositories: DescribeRepositories: no ({code})")
    assert isinstance(error, EngineError)


def test_denied_action_is_taken_from_the_aws_message() -> None:
    message = "User: arn:aws:iam::1:user/ada is not authorized to perform: ecr:ListImages on resource: *"
    assert (
        failure(400, "AccessDeniedException", message).hint == "allow ecr:ListImages to the credentials' user or role"
    )


def test_denied_action_defaults_to_the_requested_one() -> None:
    error = failure(403, "UnauthorizedOperation", "You are not authorized to perform this operation.")
    assert error.hint == "allow ecr:DescribeRepositories to the credentials' user or role"


def test_error_for_expired_credentials_explains_how_to_log_in_again() -> None:
    assert "aws sso login" in failure(400, "ExpiredTokenException", "The security token has expired").hint


def test_sagemaker_could_not_find_maps_to_not_there() -> None:
    assert type(failure(400, "ValidationException", 'Could not find endpoint "x".')) is NotThere
    assert type(failure(400, "ValidationException", "1 validation error detected")) is AwsError


XHTML = b"""<?xml version="1.0"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "xhtml1-strict.dtd">
<html xmlns="http://www.w3.org/1999/xhtml"><body>Log in</body></html>"""


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, XHTML), (200, b"<!-- portal -->\n<html></html>"), (200, b"OK"), (404, b""), (404, b"404 page not found")],
)
@pytest.mark.parametrize(
    ("service", "operation"),
    [("kms", "list_keys"), ("eks", "list_clusters"), ("s3", "list_buckets")],
)
def test_response_of_another_server_is_neither_an_empty_list_nor_an_absence(
    status: int, body: bytes, service: str, operation: str
) -> None:
    """Parsed as XML or JSON, these responses have no members, so an audit would report no leftovers."""
    with (
        answering(status, body) as url,
        Aws(environ={**KEYS, "AWS_ENDPOINT_URL": url}, attempts=1) as aws,
        pytest.raises(NoAnswer),
        aws_errors("list them"),
    ):
        getattr(aws.client(service), operation)()


def test_refused_connection_maps_to_no_endpoint() -> None:
    import botocore.session
    from botocore.config import Config

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    once = Config(retries={"total_max_attempts": 1}, connect_timeout=1)  # avoids the seconds of pause between attempts
    keys = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "secret"}
    client = botocore.session.Session().create_client("sts", "us-east-1", endpoint_url=url, config=once, **keys)
    with pytest.raises(NoAnswer) as raised, aws_errors("ask"):
        client.get_caller_identity()
    client.close()
    assert "region" in raised.value.hint


def test_missing_credentials_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with Aws("us-east-1", environ={}) as aws, pytest.raises(NotLoggedIn, match="no credentials") as raised:
        _ = aws.identity
    assert "aws configure" in raised.value.hint


def test_unknown_profile_is_a_login_error() -> None:
    with pytest.raises(NotLoggedIn, match="absent-profile"):
        Aws("us-east-1", environ={"AWS_PROFILE": "absent-profile"})


def test_a_region_comes_from_the_argument_then_the_environment() -> None:
    assert Aws("eu-west-1", environ=KEYS).region == "eu-west-1"
    assert Aws(environ=KEYS).region == "us-east-1"
    assert Aws(environ={"AWS_DEFAULT_REGION": "ap-south-1"}).region == "ap-south-1"


def test_error_for_a_missing_region_explains_how_to_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(AwsError, match="no region") as raised:
        Aws(environ={})
    assert "AWS_REGION" in raised.value.hint


def test_a_misspelled_region_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(AwsError, match="'us-east1' is not") as raised:
        Aws("us-east1", environ=KEYS)
    assert raised.value.hint == "did you mean us-east-1?"


def test_calls_are_counted() -> None:
    with answering(200, {"repositories": []}) as url, Aws(environ={**KEYS, "AWS_ENDPOINT_URL": url}) as aws:
        aws.client("ecr").describe_repositories()
        aws.client("ecr").describe_repositories()
        assert aws.num_calls == 2
        assert aws.client("ecr") is aws.client("ecr")


def test_retries_use_standard_mode() -> None:
    config = Aws(environ=KEYS).client("ec2").meta.config
    assert config.retries["mode"] == "standard"
    assert (config.connect_timeout, config.read_timeout) == (10, 60)


def test_missing_part_of_botocore_is_reported() -> None:
    from botocore.exceptions import MissingDependencyException

    with pytest.raises(MissingExtra, match="crt"), aws_errors("log in"):
        raise MissingDependencyException(msg="this needs botocore[crt]")


def test_other_errors_are_not_converted() -> None:
    with pytest.raises(KeyError), aws_errors("think"):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("client", "operation", "action"),
    [
        ("ec2", "DescribeVolumes", "ec2:DescribeVolumes"),
        ("elbv2", "DescribeTags", "elasticloadbalancing:DescribeTags"),
        ("elb", "DescribeTags", "elasticloadbalancing:DescribeTags"),
        ("efs", "DescribeFileSystems", "elasticfilesystem:DescribeFileSystems"),
        ("s3", "ListBuckets", "s3:ListAllMyBuckets"),
        ("budgets", "DescribeBudgets", "budgets:ViewBudget"),
    ],
)
def test_iam_actions_are_derived_from_client_and_operation(client: str, operation: str, action: str) -> None:
    assert iam_action(client, operation) == action


def test_partition_is_derived_from_the_region() -> None:
    assert [partition(one) for one in ("us-east-1", "cn-north-1", "us-gov-west-1")] == ["aws", "aws-cn", "aws-us-gov"]
