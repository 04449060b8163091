"""Azurite on loopback: Microsoft's emulator of Azure's blobs, which verifies signatures as Azure does."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path

from tests.helpers.until import until
from tests.servers.ports import port_of

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".cache" / "azurite"
NODE = FOLDER / "bin" / "node"
PROGRAM = FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
VERSION = "2021-12-02"
"""Of the API."""


@dataclass(frozen=True)
class Azurite:
    """A server that runs, with one account."""

    host: str
    port: int
    account: str
    key: str
    """In base64."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def environ(self, endpoint: str = "") -> dict[str, str]:
        """What clients of obstore read; `endpoint` may be that of a proxy."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_ENDPOINT": f"{endpoint or self.endpoint}/{self.account}",
        }

    def make_container(self, name: str) -> None:
        """By the request of https://learn.microsoft.com/rest/api/storageservices/create-container."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION, "Content-Length": "0"}
        headers["Authorization"] = f"SharedKey {self.account}:{self._signature(name, headers)}"
        connection = HTTPConnection(self.host, self.port, timeout=60)
        connection.request("PUT", f"/{self.account}/{name}?restype=container", headers=headers)
        answer = connection.getresponse()
        words = answer.read().decode()
        connection.close()
        assert answer.status == 201, f"{answer.status} {words}"

    def _signature(self, name: str, headers: dict[str, str]) -> str:
        """Of the request that makes a container, as Azure's documentation on `Shared Key` writes it."""
        own = [f"{field}:{headers[field]}" for field in ("x-ms-date", "x-ms-version")]
        # The account is there twice: once as such, once as the first part of the path of an emulator.
        resource = [f"/{self.account}/{self.account}/{name}", "restype:container"]
        words = "\n".join(["PUT", *[""] * 11, *own, *resource])
        return base64.b64encode(hmac.digest(base64.b64decode(self.key), words.encode(), hashlib.sha256)).decode()


@contextmanager
def azurite(folder: Path, host: str = "127.0.0.1") -> Iterator[Azurite]:
    """A server over a folder, with a key of its own, on a port that the kernel chooses; installed if it is missing.

    `host` is the address of this machine on which it listens.
    """
    subprocess.run(["bash", str(ROOT / "tools" / "azurite.sh")], check=True, stdout=subprocess.DEVNULL)
    account, key = f"account{secrets.token_hex(4)}", base64.b64encode(secrets.token_bytes(64)).decode()
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--location", folder, "--blobHost", host, "--blobPort", "0", "--silent"]
    # obstore asks for a version of the API that is newer than those that Azurite knows.
    program = [NODE, PROGRAM, *words, "--skipApiVersionCheck", "--disableTelemetry"]
    # It ends with this process, however that ends.
    command = ["setpriv", "--pdeathsig", "KILL", *map(str, program)]
    environ = {**os.environ, "AZURITE_ACCOUNTS": f"{account}:{key}"}
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        popen = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        port = until(lambda: port_of(popen), f"Azurite does not listen; see {log.name}")
        yield Azurite(host, port, account, key)
    finally:
        popen.kill()
        popen.wait()
