"""Pod roles provide credentials for S3, by an emulated agent (EKS Pod Identity, ECS) and an emulated STS (IRSA)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.servers.emulated_roles import EmulatedRoles, emulated_roles

from windlass.stores.errors import Busy, Denied
from windlass.stores.s3.credentials import AGAIN_SECONDS, RENEW_SECONDS, Credentials
from windlass.stores.s3.roles import is_agent
from windlass.stores.s3.signature import Keys

ROLE = "arn:aws:iam::111122223333:role/digits"
TOKEN = "header.payload.signature"


@pytest.fixture
def roles() -> Iterator[EmulatedRoles]:
    with emulated_roles() as found:
        yield found


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def of_agent(roles: EmulatedRoles, token: Path) -> dict[str, str]:
    """Returns the variables that EKS Pod Identity sets in a pod."""
    uri = f"{roles.address}/v1/credentials"
    return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": uri, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)}


def of_emulated_sts(roles: EmulatedRoles, token: Path) -> dict[str, str]:
    """Returns the variables that EKS sets in a pod of a service account with a role, and the address of the
    emulation.
    """
    return {
        "AWS_ROLE_ARN": ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL_STS": roles.address,
    }


def found(environ: dict[str, str], now: float = 0.0) -> Keys:
    return Credentials(environ, "s3://runs", lambda: now).keys()


def test_the_agent_gives_keys_for_the_token_of_the_pod(roles: EmulatedRoles, token: Path) -> None:
    assert found(of_agent(roles, token)) == Keys(*roles.keys())
    [asked] = roles.asked
    assert (asked.method, asked.path, asked.authorization) == ("GET", "/v1/credentials", TOKEN)


def test_emulated_sts_gives_keys_for_the_token_of_the_service_account(roles: EmulatedRoles, token: Path) -> None:
    assert found(of_emulated_sts(roles, token)) == Keys(*roles.keys())
    [asked] = roles.asked
    assert (asked.method, asked.authorization, asked.form) == (
        "POST",
        "",
        {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": ROLE,
            "WebIdentityToken": TOKEN,
            "RoleSessionName": "windlass",
        },
    )


def test_keys_of_the_environment_come_before_a_role(roles: EmulatedRoles, token: Path) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret", **of_agent(roles, token)}
    assert (found(environ), roles.asked) == (Keys("AKIA", "secret"), [])


def test_keys_are_renewed_before_expiry_with_current_token(roles: EmulatedRoles, token: Path) -> None:
    now = [1_000_000.0]
    roles.expires_at = now[0] + 3600
    credentials = Credentials(of_agent(roles, token), "s3://runs", lambda: now[0])
    first = credentials.keys()
    now[0] += 3600 - RENEW_SECONDS - 1
    assert credentials.keys() == first
    token.write_text("another")
    roles.expires_at += 3600
    now[0] += 1
    assert credentials.keys() != first
    assert [one.authorization for one in roles.asked] == [TOKEN, "another"]


def test_valid_keys_are_used_while_renewal_fails(roles: EmulatedRoles, token: Path) -> None:
    now = [1_000_000.0]
    roles.expires_at = now[0] + 3600
    credentials = Credentials(of_emulated_sts(roles, token), "s3://runs", lambda: now[0])
    first = credentials.keys()
    roles.status, roles.error = 503, "ServiceUnavailable"
    now[0] += 3600 - RENEW_SECONDS
    assert [credentials.keys(), credentials.keys(), len(roles.asked)] == [first, first, 2]
    now[0] += AGAIN_SECONDS
    assert (credentials.keys(), len(roles.asked)) == (first, 3)
    now[0] = roles.expires_at
    with pytest.raises(Busy, match="STS answered 503 ServiceUnavailable"):
        credentials.keys()


def test_concurrent_threads_request_keys_once(roles: EmulatedRoles, token: Path) -> None:
    credentials, all_there = Credentials(of_agent(roles, token), "s3://runs"), threading.Barrier(4)

    def keys(_number: int) -> Keys:
        all_there.wait()
        return credentials.keys()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(keys, range(4))) == {Keys(*roles.keys())}
    assert len(roles.asked) == 1


def test_fork_does_not_wait_for_lock_of_parent_thread(roles: EmulatedRoles, token: Path) -> None:
    """Simulates a fork, in which the thread that holds the lock does not exist."""
    credentials, taken = Credentials(of_agent(roles, token), "s3://runs"), threading.Lock()
    assert taken.acquire()
    credentials._lock = (os.getppid(), taken)
    assert credentials.keys() == Keys(*roles.keys())


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "InvalidIdentityToken", Denied),
        (403, "AccessDenied", Denied),
        (400, "IDPCommunicationError", Busy),
        (429, "", Busy),
        (500, "InternalFailure", Busy),
    ],
)
def test_refusal_of_sts_names_role_and_no_token(
    roles: EmulatedRoles, token: Path, status: int, code: str, kind: type[OSError]
) -> None:
    roles.status, roles.error = status, code
    with pytest.raises(kind, match=rf"STS answered {status}.*check the trust policy of the role {ROLE}") as caught:
        found(of_emulated_sts(roles, token))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(("status", "kind"), [(401, Denied), (404, Denied), (429, Busy), (502, Busy)])
def test_refusal_of_agent_is_reported(roles: EmulatedRoles, token: Path, status: int, kind: type[OSError]) -> None:
    roles.status = status
    with pytest.raises(kind, match=f"the agent for credentials at 127.0.0.1:.* answered {status}"):
        found(of_agent(roles, token))


@pytest.mark.parametrize("host", ["169.254.170.2", "169.254.170.23", "fd00:ec2::23", "127.0.0.1", "::1", "localhost"])
def test_the_agents_of_aws_and_of_this_machine_need_no_tls(host: str) -> None:
    assert is_agent(host)


@pytest.mark.parametrize(
    "uri", ["http://10.0.0.1/x", "http://169.254.170.3/x", "http://agent.example.com/x", "ftp://127.0.0.1/x", "x"]
)
def test_a_token_is_sent_without_tls_to_agents_alone(uri: str, token: Path) -> None:
    environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": uri, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token)}
    with pytest.raises(Denied, match="is no agent for credentials"):
        found(environ)


def test_incomplete_settings_are_named(roles: EmulatedRoles, token: Path, tmp_path: Path) -> None:
    whole = of_emulated_sts(roles, token)
    with pytest.raises(Denied, match="AWS_ROLE_ARN is not"):
        found({**whole, "AWS_ROLE_ARN": ""})
    with pytest.raises(Denied, match=r"the token of the pod cannot be read from .*nothing"):
        found({**whole, "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "nothing")})
    token.write_text("one\r\nx-evil: two")
    with pytest.raises(Denied, match="control characters"):
        found(of_agent(roles, token))
    assert roles.asked == []


def test_an_answer_without_keys_is_refused(roles: EmulatedRoles, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "answer", lambda _method: b"<html/>")
    for environ in (of_agent(roles, token), of_emulated_sts(roles, token)):
        with pytest.raises(Denied, match="has no credentials"):
            found(environ)
