"""An S3 server for the tests of storage: one for each test process, and a bucket and a proxy for each test."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator

import pytest
from tests.servers.faulty import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "buckets") as found:
        yield found


@pytest.fixture
def bucket(server: S3Server) -> Iterator[str]:
    name = f"b{secrets.token_hex(6)}"
    server.client().create_bucket(Bucket=name)
    yield name
    # The server may still write what a client sent that was killed.
    shutil.rmtree(server.folder / name, ignore_errors=True)


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.port) as found:
        yield found
