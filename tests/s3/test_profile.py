"""Profiles of the AWS CLI give region, endpoint and keys, without botocore."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.s3.credentials import REGION, Credentials
from windlass.s3.errors import Denied
from windlass.s3.profile import Profile
from windlass.s3.signature import Keys

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
    [("", "eu-west-1", "", Keys("AKIA", "secret")),
     ("lab", "eu-central-1", "https://minio.example.com", Keys("ASIA", "other", "token==")),
     ("two words", "", "https://two.example.com", None), ("role", "", "", None), ("missing", "", "", None)],
)  # fmt: skip
def test_a_profile_has_what_its_files_say(home: Path, name: str, region: str, endpoint: str, keys: Keys | None) -> None:
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
