"""A container of Azurite or a bucket of the emulated Google Cloud Storage, with its objects and requests."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import obstore
from tests.servers.azurite import Azurite
from tests.servers.emulated_gcs import EmulatedGcs
from tests.servers.faulty import PASS, Fault, FaultProxy, Request


@dataclass(frozen=True)
class Store:
    """Bucket or container of a server, behind a proxy."""

    kind: str
    server: Azurite | EmulatedGcs
    bucket: str
    proxy: FaultProxy

    def address(self, prefix: str = "set") -> str:
        return f"{self.kind}://{self.bucket}/{prefix}"

    def put(self, key: str, data: bytes) -> None:
        """Writes an object directly, without the command."""
        obstore.put(self._opened(), key, data)

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self._opened(), key).bytes())

    def remove(self, key: str) -> None:
        obstore.delete(self._opened(), key)

    def listed(self) -> set[str]:
        return {one["path"] for batch in obstore.list(self._opened()) for one in batch}

    def _opened(self) -> Any:
        options: Any = {"client_options": {"allow_http": True}}
        if isinstance(self.server, EmulatedGcs):
            account = self.server.environ()["GOOGLE_SERVICE_ACCOUNT_KEY"]
            return obstore.store.GCSStore(self.bucket, service_account_key=account, **options)
        endpoint = self.server.environ()["AZURE_ENDPOINT"]
        return obstore.store.AzureStore(
            self.bucket, account_name=self.server.account, account_key=self.server.key, endpoint=endpoint, **options
        )

    def key_of(self, request: Request) -> str:
        """Returns the key of the object that a request reads or writes; empty for a listing."""
        return unquote(request.path).partition(f"/{self.bucket}/")[2]

    def moved(self, *methods: str) -> list[str]:
        """Returns the keys of set objects (not manifests) that were read or written so far, once per request."""
        keys = [self.key_of(one) for one in list(self.proxy.requests) if one.method in methods and one.status < 300]
        return [key for key in keys if key and "/.windlass/" not in key]


@dataclass
class Gate:
    """Blocks all requests for the data of one object after the first ones."""

    store: Store
    name: str
    num_first: int
    num_asked: int = 0
    num_held: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.store.proxy.fault = self._fault

    def release(self) -> None:
        self._open.set()

    def _fault(self, request: Request) -> Fault:
        if request.method not in ("GET", "PUT") or not self.store.key_of(request).endswith(f"/{self.name}"):
            return PASS
        with self._lock:
            self.num_asked += 1
            is_held = self.num_asked > self.num_first
            self.num_held += is_held
        if is_held:
            self._open.wait(240)
        return PASS


def journaled(folder: Path) -> set[str]:
    """Returns the names of files that the journals below this folder record as written."""
    lines = [line for path in folder.rglob("journal.jsonl") for line in path.read_text().splitlines()]
    return {json.loads(line)["name"] for line in lines if line.startswith('{"name"') and line.endswith("}")}


def num_parts(folder: Path) -> int:
    """Returns the number of file parts that a copy to this folder has recorded as written."""
    lines = [line for path in folder.rglob("*.parts") for line in path.read_text().splitlines()]
    return sum(re.fullmatch(r"\d+ [0-9a-f]{64}", line) is not None for line in lines)
