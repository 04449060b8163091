"""Store servers for the tests of storage: one server per test process, a bucket and a proxy per test."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.azurite import Azurite, azurite
from tests.servers.emulated_gcs import EmulatedGcs, emulated_gcs
from tests.servers.faulty import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server, s3_server
from tests.storage.other_stores import Store
from tests.storage.sets import Data, shape, write_set


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "buckets") as found:
        yield found


@pytest.fixture
def bucket(server: S3Server) -> Iterator[str]:
    name = f"b{secrets.token_hex(6)}"
    server.client().create_bucket(Bucket=name)
    yield name
    # The server may still be writing data of a client that was killed.
    shutil.rmtree(server.folder / name, ignore_errors=True)


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.port) as found:
        yield found


@pytest.fixture
def data(tmp_path: Path, server: S3Server, proxy: FaultProxy) -> Data:
    return Data(tmp_path / "home", server, proxy.endpoint)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("set") / "source", shape())


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    folder = tmp_path_factory.mktemp("azurite") / "blobs"
    with azurite(folder) as found:
        yield found
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def google(server: S3Server) -> Iterator[EmulatedGcs]:
    with emulated_gcs(server) as found:
        yield found


@pytest.fixture(params=["az", pytest.param("gs", marks=pytest.mark.nightly)])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "az":
        azure, bucket = request.getfixturevalue("azure"), f"b{secrets.token_hex(6)}"
        azure.make_container(bucket)
    else:
        bucket = request.getfixturevalue("bucket")
    server = azure if request.param == "az" else request.getfixturevalue("google")
    with fault_proxy(server.port) as proxy:
        yield Store(request.param, server, bucket, proxy)
