"""S3 server for the pods of a test cluster, behind a proxy that counts traffic and can stall it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.bed.cluster import Bed
from tests.servers.faulty import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server, s3_server

BUCKET = "runs"
SECRET = "s3-keys"


@dataclass(frozen=True)
class PodStore:
    """Server with the bucket `runs`, whose keys are in the Secret `s3-keys` of a namespace."""

    server: S3Server
    proxy: FaultProxy

    @property
    def fields(self) -> dict[str, Any]:
        """Job fields to use the store from pods, through the proxy."""
        env = self.server.environ(self.proxy.endpoint)
        return {"secrets": [SECRET], "env": {name: value for name, value in env.items() if "KEY" not in name}}


@contextlib.contextmanager
def pod_store(bed: Bed, namespace: str, folder: Path) -> Iterator[PodStore]:
    """Starts a server over a local folder, for the pods of a namespace."""
    outside = bed.layout.outside
    with s3_server(folder, outside) as server, fault_proxy(server.port, outside) as proxy:
        server.client().create_bucket(Bucket=BUCKET)
        keys = {name: value for name, value in server.environ().items() if "KEY" in name}
        words = [f"--from-literal={name}={value}" for name, value in keys.items()]
        bed.kubectl("create", "secret", "generic", SECRET, "-n", namespace, *words)
        yield PodStore(server, proxy)
