"""Errors before a copy starts are reported in one message, without secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers.s3 import S3Server
from tests.storage.sets import Data, Done

from windlass.storage import manifest

pytestmark = pytest.mark.slow
Call = Callable[..., Done]
CLOSED = "http://127.0.0.1:9"
"""Address of the discard port, on which no server listens."""


@pytest.fixture
def call(tmp_path: Path, server: S3Server) -> Call:
    """Returns a call of the command with separate settings; its output must not contain secrets."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a.bin").write_bytes(b"a")

    def run(*words: str, **settings: str) -> Done:
        done = Data(tmp_path / "home", server, settings=settings).run(*words)
        for secret in (server.secret_key, "X-Amz-Signature", "Traceback", "internal error"):
            assert secret not in done.stdout + done.stderr
        return done

    return run


def test_missing_bucket_is_named(call: Call, tmp_path: Path) -> None:
    for words in (("ls", "s3://nothing/set"), ("copy", str(tmp_path / "source"), "s3://nothing/set")):
        done = call(*words)
        assert done.returncode == 1
        assert done.stderr == "error: s3://nothing/set/: there is no bucket nothing\n  check its name\n"


def test_prefix_without_objects_is_not_an_empty_set(call: Call, bucket: str, tmp_path: Path) -> None:
    done = call("copy", f"s3://{bucket}/typo", str(tmp_path / "to"))
    assert done.returncode == 1
    assert f"s3://{bucket}/typo/: there is no object below it" in done.stderr
    assert not (tmp_path / "to").exists()


def test_empty_set_is_copied_back(call: Call, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert call("copy", str(tmp_path / "empty"), f"s3://{bucket}/empty").returncode == 0
    done = call("copy", f"s3://{bucket}/empty", str(tmp_path / "to"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [one.name for one in (tmp_path / "to").iterdir()] == [manifest.IN_FOLDER]


def test_wrong_key_and_missing_key_raise_different_errors(call: Call, bucket: str, tmp_path: Path) -> None:
    for words in (("ls", f"s3://{bucket}/set"), ("copy", str(tmp_path / "source"), f"s3://{bucket}/set")):
        wrong = call(*words, AWS_SECRET_ACCESS_KEY="wrong")
        assert wrong.returncode == 1
        assert "check the credentials, and what they may do" in wrong.stderr
        none = call(*words, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
        assert none.returncode == 1
        assert "no credentials for AWS were found: set AWS_ACCESS_KEY_ID" in none.stderr


def test_unreachable_server_is_named(call: Call, bucket: str) -> None:
    done = call("ls", f"s3://{bucket}/set", AWS_ENDPOINT_URL_S3=CLOSED)
    assert done.returncode == 1
    assert f"{CLOSED.removeprefix('http://')}: the server does not answer" in done.stderr
    assert "check the region, AWS_ENDPOINT_URL_S3 and the network" in done.stderr
