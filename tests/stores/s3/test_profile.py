"""Profiles of the AWS CLI provide region, endpoint and keys without botocore, which is used for logins and roles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.servers.emulated_roles import emulated_roles

from windlass.stores.errors import Busy, Denied
from windlass.stores.s3.credentials import REGION, Credentials
from windlass.stores.s3.profile import Profile
from windlass.stores.s3.signature import Keys

CONFIG = """
[default]
region = eu-west-1
[profile lab]
region=eu-central-1
services = lab-stores
endpoint_url = https://all.example.com
[services lab-stores]
s3 =
  endpoint_url = https://minio.example.com
  addressing_style = path
[profile "two words"]
endpoint_url = https://two.example.com
[profile role]
role_arn = arn:aws:iam::111122223333:role/digits
source_profile = default
[profile login]
sso_session = lab
sso_account_id = 111122223333
sso_role_name = digits
[sso-session lab]
sso_region = eu-west-1
sso_start_url = https://lab.awsapps.com/start
"""
SECRET = """
[default]
aws_access_key_id = AKIA
aws_secret_access_key = secret
[lab]
aws_access_key_id = ASIA
aws_secret_access_key = other
aws_session_token = token==
[role]
aws_access_key_id = AKIA
aws_secret_access_key = secret
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(CONFIG)
    (tmp_path / ".aws/credentials").write_text(SECRET)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "region", "endpoint", "keys"),
    [
        ("", "eu-west-1", "", Keys("AKIA", "secret")),
        ("lab", "eu-central-1", "https://minio.example.com", Keys("ASIA", "other", "token==")),
        ("two words", "", "https://two.example.com", None),
        ("role", "", "", None),
        ("missing", "", "", None),
    ],
)
def test_profile_is_read_from_its_files(home: Path, name: str, region: str, endpoint: str, keys: Keys | None) -> None:
    found = Profile({"HOME": str(home), "AWS_PROFILE": name})
    assert (found.region, found.endpoint, found.keys) == (region, endpoint, keys)


def test_the_environment_comes_before_the_profile(home: Path) -> None:
    environ = {"HOME": str(home), "AWS_PROFILE": "lab", "AWS_REGION": "us-west-2", "AWS_ENDPOINT_URL": "http://here"}
    found = Credentials(environ, "s3://runs")
    assert (found.region, found.endpoint, found.keys()) == (
        "us-west-2",
        "http://here",
        Keys("ASIA", "other", "token=="),
    )
    keys = {"AWS_ACCESS_KEY_ID": "MINE", "AWS_SECRET_ACCESS_KEY": "mine"}
    assert Credentials({**environ, **keys}, "s3://runs").keys() == Keys("MINE", "mine")


def test_without_files_there_is_no_profile(tmp_path: Path) -> None:
    found = Credentials({"HOME": str(tmp_path)}, "s3://runs")
    assert (found.region, found.endpoint) == (REGION, "")


def test_a_damaged_file_is_named(home: Path) -> None:
    (home / "config").write_text("region = without a section\n")
    with pytest.raises(Denied, match=f"{home}/config: it cannot be read"):
        Profile({"HOME": str(home), "AWS_CONFIG_FILE": str(home / "config")})


def test_missing_login_is_denied(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Credentials(used(home, "login", monkeypatch), "s3://runs")
    with pytest.raises(Denied, match=r"s3://runs: credentials for AWS: Error loading SSO Token"):
        found.keys()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(403, "AccessDenied", Denied), (400, "Throttling", Busy), (503, "ServiceUnavailable", Busy), (0, "", Busy)],
)
def test_refused_role_is_denied_and_delayed_role_is_busy(
    home: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str, kind: type[OSError]
) -> None:
    with emulated_roles() as sts:
        sts.status, sts.error = status, code
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.address if status else "http://127.0.0.1:9")
        found = Credentials(used(home, "role", monkeypatch), "s3://runs")
        with pytest.raises(kind, match=f"s3://runs: credentials for AWS: .*{code}"):
            found.keys()


def used(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Sets this profile in the environment of the process, which botocore reads."""
    for variable in [one for one in os.environ if one.startswith("AWS_") and one != "AWS_ENDPOINT_URL_STS"]:
        monkeypatch.delenv(variable)
    settings = {
        "AWS_PROFILE": name,
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_CONFIG_FILE": str(home / ".aws/config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws/credentials"),
    }
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    return dict(os.environ)
