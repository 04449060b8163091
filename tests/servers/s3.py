"""A real S3 server on loopback: VersityGW, a gateway over a folder that verifies checksums and signatures."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers import golang
from tests.helpers.golang import GoModule
from tests.helpers.until import until
from tests.servers.ports import port_of

VERSITYGW = GoModule(
    Path(__file__).with_name("go-s3"), "an S3 server (3 minutes)", ("github.com/versity/versitygw/cmd/versitygw",)
)
REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """A server that runs. Its buckets are folders below `folder`, its objects files."""

    pid: int
    host: str
    port: int
    folder: Path
    access_key: str
    secret_key: str

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def environ(self, endpoint: str = "") -> dict[str, str]:
        """What every S3 client reads; `endpoint` may be that of a proxy."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL_S3": endpoint or self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """A client of boto3."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[S3Server]:
    """A server over a folder, with keys of its own, on a port that the kernel chooses; it is built if it is missing.

    `host` is the address of this machine on which it listens.
    """
    golang.build([VERSITYGW])
    access_key, secret_key = secrets.token_hex(10), secrets.token_hex(20)
    environ = {**os.environ, "ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key}
    # As S3 does, it keeps connections open.
    program = [VERSITYGW.program("versitygw"), "--quiet", "--keep-alive", "--port", f"{host}:0", "posix", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    # It ends with this process, however that ends.
    command = ["setpriv", "--pdeathsig", "KILL", *program]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        popen = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        port = until(lambda: port_of(popen), f"the S3 server does not listen; see {log.name}")
        yield S3Server(popen.pid, host, port, folder, access_key, secret_key)
    finally:
        popen.kill()
        popen.wait()
