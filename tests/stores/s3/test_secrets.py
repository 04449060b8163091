"""Secrets of Secrets Manager are read by the standard library, against an emulated service checked by
botocore's model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakeaws.control_plane import ControlPlane

from windlass.stores.errors import Denied, Missing, StoreError
from windlass.stores.s3.secrets import main, secret

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI"}


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path, {})
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def environ(plane: ControlPlane) -> dict[str, str]:
    return {**KEYS, "AWS_ENDPOINT_URL_SECRETS_MANAGER": plane.environ["AWS_ENDPOINT_URL_SAGEMAKER"]}


def test_the_members_of_a_secret_are_variables(plane: ControlPlane, environ: dict[str, str]) -> None:
    plane.account.secrets["tokens"] = '{"API_TOKEN": "a", "OTHER": "b"}'
    assert secret("tokens", environ) == {"API_TOKEN": "a", "OTHER": "b"}
    assert plane.calls == {"GetSecretValue": 1}


@pytest.mark.parametrize("text", ["just text", "[1]", "{}", '{"A": 1}', '"x"'])
def test_secret_that_is_not_an_object_of_strings_is_refused_and_not_printed(
    plane: ControlPlane, environ: dict[str, str], text: str
) -> None:
    plane.account.secrets["tokens"] = text
    with pytest.raises(StoreError) as found:
        secret("tokens", environ)
    assert str(found.value).startswith("secret tokens: it is not of the form")
    assert text not in str(found.value) or not text.strip("{}")


def test_missing_or_forbidden_secret_is_refused(plane: ControlPlane, environ: dict[str, str]) -> None:
    with pytest.raises(Missing, match="secret none: there is none of that name"):
        secret("none", environ)
    plane.account.secrets["locked"] = "{}"
    plane.account.locked_secrets = {"locked"}
    with pytest.raises(Denied, match="the role may not read it"):
        secret("locked", environ)


def test_other_refusals_are_quoted(plane: ControlPlane, environ: dict[str, str]) -> None:
    plane.is_login_expired = True
    with pytest.raises(StoreError, match="ExpiredTokenException"):
        secret("tokens", environ)


@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalServiceError"), (503, ""), (429, ""), (400, "ThrottlingException")]
)
def test_request_to_busy_service_is_repeated(
    plane: ControlPlane,
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    code: str,
) -> None:
    plane.account.secrets["tokens"] = '{"API_TOKEN": "a"}'
    plane.refuse("GetSecretValue", code, "try again", status=status)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["secrets", "tokens"])
    main()
    assert json.loads(capsys.readouterr().out) == {"API_TOKEN": "a"}
    assert plane.calls == {"GetSecretValue": 2}


def test_forbidden_secret_is_requested_once(
    plane: ControlPlane, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.refuse("GetSecretValue", "AccessDeniedException", "no", times=2)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["secrets", "tokens"])
    with pytest.raises(SystemExit, match="the role may not read it"):
        main()
    assert plane.calls == {"GetSecretValue": 1}
