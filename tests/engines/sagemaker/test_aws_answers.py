"""Lost, late and foreign responses between AWS and boto3 are never taken for responses of SageMaker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from tests.engines.sagemaker.planning import planned, request
from tests.fakeaws.control_plane import ACCOUNT, REGION, ControlPlane
from tests.servers.faulty import BUSY, FORBIDDEN, HTML, PASS, Fault, FaultProxy, Request, fault_proxy

from windlass.engines.sagemaker.aws import Aws
from windlass.engines.sagemaker.service import Absent, NotLoggedIn, Refused, Unavailable
from windlass.errors import LoginFailed, WindlassError

QUICK = Config(retries={"mode": "standard", "max_attempts": 1}, connect_timeout=5, read_timeout=0.5)
"""Two tries, both of which end long before a response that is 90 s late."""
LATE = Fault(delay_seconds=90.0)
LIES = {"lost": Fault(loses_answer=True), "late": LATE, "html": HTML, "forbidden": FORBIDDEN, "busy": BUSY}
KNOWN = "known-1"
CALLS: dict[str, tuple[str, Callable[[Aws, str], Any]]] = {
    "create": ("CreateTrainingJob", lambda aws, new: aws.create({**request(planned()), "TrainingJobName": new})),
    "describe": ("DescribeTrainingJob", lambda aws, new: aws.describe(KNOWN)),
    "stop": ("StopTrainingJob", lambda aws, new: aws.stop(KNOWN)),
    "streams": ("DescribeLogStreams", lambda aws, new: aws.log_streams(KNOWN)),
    "log": ("GetLogEvents", lambda aws, new: aws.read_log(f"{KNOWN}/algo-1-1732400000")),
    "search": ("Search", lambda aws, new: aws.tagged("windlass:run")),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, FaultProxy]]:
    """Yields an account with a job that still waits for instances, and the proxy before it."""
    plane = ControlPlane(tmp_path_factory.mktemp("aws"), {})
    plane.waits_with = ("Starting", "Preparing the instances for training")
    plane.start()
    with fault_proxy(plane._port) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in plane.environ.items():
            patch.setenv(name, proxy.endpoint if name.startswith("AWS_ENDPOINT_URL") else value)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "of-a-test")
        yield plane, proxy
    plane.stop()


@pytest.fixture
def plane(world: tuple[ControlPlane, FaultProxy]) -> Iterator[ControlPlane]:
    plane, proxy = world
    proxy.reset()
    plane.waiting.clear()
    plane.answer("sagemaker", "CreateTrainingJob", {**request(planned()), "TrainingJobName": KNOWN})
    yield plane
    plane.errors.clear()
    plane.on_answer = lambda operation: None


@pytest.fixture
def proxy(world: tuple[ControlPlane, FaultProxy], plane: ControlPlane) -> FaultProxy:
    return world[1]


@pytest.fixture(scope="module")
def aws(world: tuple[ControlPlane, FaultProxy]) -> Iterator[Aws]:
    made = Aws(REGION, ACCOUNT, config=QUICK)
    yield made
    made.close()


def only(operation: str, fault: Fault) -> Callable[[Request], Fault]:
    return lambda request: fault if request.operation == operation else PASS


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("call", CALLS)
def test_foreign_response_is_not_taken_for_sagemaker(proxy: FaultProxy, aws: Aws, call: str, lie: str) -> None:
    operation, ask = CALLS[call]
    proxy.fault = only(operation, LIES[lie])
    # the response is empty, so that only the description of the job shows the result
    if (call, lie) == ("stop", "html"):
        ask(aws, "new-1")
        assert aws.describe(KNOWN)["TrainingJobStatus"] == "InProgress"
        return
    with pytest.raises(Unavailable):
        ask(aws, "new-1")
    tries = [one for one in proxy.requests if one.operation == operation]
    assert len(tries) == (1 if lie in ("html", "forbidden") else 2), "boto3 has asked again, and got no answer either"


@pytest.mark.parametrize("lie", ["lost", "late"])
def test_job_whose_creation_got_no_response_is_not_created_twice(
    proxy: FaultProxy, plane: ControlPlane, aws: Aws, lie: str
) -> None:
    proxy.fault = only("CreateTrainingJob", LIES[lie])
    with pytest.raises(Unavailable):
        CALLS["create"][1](aws, "new-1")
    proxy.fault = lambda request: PASS
    assert aws.describe("new-1")["TrainingJobStatus"] == "InProgress"
    with pytest.raises(Refused) as caught:
        CALLS["create"][1](aws, "new-1")
    assert (caught.value.code, plane.jobs()) == ("ResourceInUse", [KNOWN, "new-1"])


def test_refusal_after_lost_response_is_marked_as_repeated(proxy: FaultProxy, plane: ControlPlane) -> None:
    """The first request has used up the quota that the second one needs."""
    aws = Aws(REGION, ACCOUNT, config=QUICK)  # a new client: in adaptive mode, a client with many retries retries less
    lies = iter([Fault(loses_answer=True)])
    proxy.fault = lambda request: next(lies, PASS) if request.operation == "CreateTrainingJob" else PASS
    plane.on_answer = lambda operation: plane.refuse("CreateTrainingJob", "ResourceLimitExceeded", "quota", times=2)
    with pytest.raises(Refused) as caught:
        CALLS["create"][1](aws, "new-1")
    assert (caught.value.code, caught.value.is_repeated) == ("ResourceLimitExceeded", True)
    plane.on_answer = lambda operation: None
    # a new client: a connection that the proxy has closed would cause a retry
    fresh = Aws(REGION, ACCOUNT, config=QUICK)
    with pytest.raises(Refused) as caught:
        CALLS["create"][1](fresh, "new-1")
    assert not caught.value.is_repeated


def test_login_that_expires_between_tries_marks_request_as_repeated(
    proxy: FaultProxy, plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore signs each try anew. A try that cannot be signed says nothing about the one before it."""
    soon = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    keys = {"Version": 1, "AccessKeyId": "of-a-test", "SecretAccessKey": "of-a-test", "Expiration": soon}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "config").write_text(f"[default]\ncredential_process = /bin/cat {tmp_path}/keys.json\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    aws = Aws(REGION, ACCOUNT, config=QUICK)

    def expire(request: Request) -> Fault:
        (tmp_path / "keys.json").unlink()
        return Fault(loses_answer=True)

    proxy.fault = expire
    with pytest.raises(NotLoggedIn) as caught:
        CALLS["create"][1](aws, "new-1")
    assert ("new-1" in plane.jobs(), caught.value.is_repeated) == (True, True)
    with pytest.raises(NotLoggedIn) as caught:
        CALLS["create"][1](aws, "new-2")
    assert ("new-2" in plane.jobs(), caught.value.is_repeated) == (False, False)


# -- absent, or not known ---------------------------------------------------------------------------------------------


def test_a_job_is_absent_only_in_its_own_account(proxy: FaultProxy, aws: Aws) -> None:
    with pytest.raises(Absent):
        aws.describe("none-1")
    other = Aws(REGION, "210987654321", config=QUICK)
    with pytest.raises(
        NotLoggedIn, match=f"the login is of account {ACCOUNT}, and training job none-1 is in"
    ) as caught:
        other.describe("none-1")
    assert "AWS_PROFILE" in caught.value.hint
    proxy.fault = only("GetCallerIdentity", Fault(loses_answer=True))
    with pytest.raises(Unavailable):
        aws.describe("none-1")


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("AccessDeniedException", "User: x is not authorized to perform: sagemaker:DescribeTrainingJob", NotLoggedIn),
        ("ExpiredTokenException", "The security token included in the request is expired", NotLoggedIn),
        ("ValidationException", "1 validation error detected: Value failed to satisfy constraint", Unavailable),
        ("ResourceNotFound", "Being accessed is not found.", Absent),
    ],
)
def test_refused_description_does_not_mean_absent(
    plane: ControlPlane, aws: Aws, code: str, message: str, kind: type[WindlassError]
) -> None:
    plane.refuse("DescribeTrainingJob", code, message)
    with pytest.raises(kind) as caught:
        aws.describe(KNOWN)
    assert isinstance(caught.value, Absent) == (kind is Absent)


# -- logins -----------------------------------------------------------------------------------------------------------

CONFIG = """
[profile expired]
sso_session = s
sso_account_id = 123456789012
sso_role_name = x
[sso-session s]
sso_start_url = https://x.example.com/start
sso_region = us-east-1
[profile no-json]
credential_process = /bin/echo hello
[profile no-program]
credential_process = /no/such/program
[profile fails]
credential_process = /bin/false
[profile no-token]
role_arn = arn:aws:iam::123456789012:role/x
web_identity_token_file = /no/such/token
[profile no-source]
role_arn = arn:aws:iam::123456789012:role/x
source_profile = none
[profile login]
login_session = arn:aws:iam::123456789012:user/ada
"""


@pytest.mark.parametrize(
    "profile", ["expired", "no-json", "no-program", "fails", "no-token", "no-source", "login", "none", "damaged"]
)
def test_unusable_login_is_reported_as_such(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    (tmp_path / "config").write_text("[profile" if profile == "damaged" else CONFIG)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_PROFILE": profile,
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LoginFailed) as caught:
        Aws(REGION, ACCOUNT, config=QUICK).describe(KNOWN)
    assert (caught.value.exit_code, "log in again" in caught.value.hint) == (2, True), json.dumps(caught.value.message)
    assert proxy.requests == []
