"""The check of a store before a run fails only for errors that cannot disappear by the end of the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.test_s3_errors import CLOSED

from windlass.errors import StorageError
from windlass.storage import reach
from windlass.storage.place import Fatal, Throttled


@pytest.mark.parametrize(
    ("answer", "is_refused"),
    [
        (None, False),
        (Fatal("there is no bucket nothing"), True),
        (Throttled("503 SlowDown"), False),
        (StorageError("501"), False),
    ],
)
def test_permanent_error_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, answer: StorageError | None, is_refused: bool
) -> None:
    class Scripted:
        def check(self) -> None:
            if answer is not None:
                raise answer

    monkeypatch.setattr(reach, "open_place", lambda _address, _home: Scripted())
    assert (reach.refusal("s3://bucket/runs", Path("/home")) is not None) == is_refused


def test_an_address_without_a_bucket_is_refused_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "open_place", lambda *_: pytest.fail("asked"))
    refused = reach.refusal("s3:///runs", Path("/home"))
    assert refused is not None
    assert refused.message == "s3:///runs: the bucket is missing"


def test_check_passes_if_server_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "ENDPOINT_URL_S3": CLOSED}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    assert reach.refusal("s3://bucket/runs", tmp_path) is None


def test_a_login_that_has_expired_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile lab]\nsso_session = lab\nsso_account_id = 111122223333\nsso_role_name = digits\n"
        "[sso-session lab]\nsso_region = eu-west-1\nsso_start_url = https://lab.awsapps.com/start\n"
    )
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name, value in {"CONFIG_FILE": str(config), "PROFILE": "lab", "ENDPOINT_URL_S3": CLOSED}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    refused = reach.refusal("s3://bucket/runs", tmp_path)
    assert isinstance(refused, Fatal)
    assert "Error loading SSO Token" in refused.message
