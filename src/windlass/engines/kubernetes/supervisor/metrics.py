"""The metrics of a run in its cluster: a thinned copy of the supervisor's metrics file, in one ConfigMap of the run.

    ConfigMap RUN-metrics    text of a file of `runs/metrics.py`, compressed: at most MAX_BYTES

The supervisor writes the ConfigMap while points arrive, before it starts an attempt, and before it records the end of
the run. Its successor continues from it, and commands on any machine copy it to the run's folder.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.access import background, lease
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import labels, layout, manifests
from windlass.engines.kubernetes.supervisor.record import DamagedRecord, unpacked
from windlass.errors import EngineError
from windlass.runs import metrics
from windlass.runs.metrics import MetricsFile
from windlass.supervise.backend import HeldElsewhere

SERIES: Final = "series"
"""Key of the compressed text in the ConfigMap."""
MAX_BYTES: Final = 512 << 10
"""Maximum bytes of the compressed text. Kubernetes limits a ConfigMap to 1 MiB."""
MAX_POINTS: Final = 32_000
"""Maximum number of points in the ConfigMap, of all series together. A compressed point has about 16 bytes."""
FILE_BYTES: Final = 3 << 20
"""Size at which the supervisor's metrics file is thinned to MAX_POINTS. Its pod has little memory and CPU."""
UNPACKED_BYTES: Final = 16 << 20
"""Maximum bytes of the text after decompression; limits the memory that a ConfigMap changed by another user can use."""
LEAST_PAUSE_SECONDS: Final = 10.0
MOST_PAUSE_SECONDS: Final = 30.0
BYTES_A_SECOND: Final = 16 << 10
"""Maximum average rate of writes, down to one each MOST_PAUSE_SECONDS: etcd keeps each version of an object for
minutes."""


def metrics_file(run_dir: Path) -> MetricsFile:
    """Returns the metrics file of a supervisor in the cluster, with lower limits than on a machine."""
    return MetricsFile(run_dir, max_bytes=FILE_BYTES, max_points=MAX_POINTS)


def read_metrics(client: Client, run_id: str, known: str = "") -> tuple[str, bytes | None]:
    """Returns the version of a run's metrics in the cluster, and the text of a metrics file: None if the version is
    `known`, or the cluster has no metrics. The text is untrusted; it has at most UNPACKED_BYTES.

    Raises Refused, Unreachable, DamagedRecord.
    """
    found = client.get_if_exists("v1", "ConfigMap", layout.metrics_name(run_id))
    if found is None:
        return "", None
    there = str(found["metadata"].get("resourceVersion", ""))
    try:
        return there, None if there == known else unpacked(found, SERIES, UNPACKED_BYTES).encode()
    except DamagedRecord as error:
        raise DamagedRecord(error.message, "the run's supervisor writes it again with the next points") from error


def packed(data: bytes) -> bytes:
    """Compresses the content of a metrics file, with as many of its points as fit into MAX_BYTES."""
    num_points = MAX_POINTS
    while True:
        text = metrics.compacted(data, num_points).encode()
        found = gzip.compress(text, compresslevel=6, mtime=0)
        if len(found) <= MAX_BYTES:
            return found
        if num_points < metrics.MAX_SERIES:  # names fill the space: the last series are left out
            data = b"".join(text.splitlines(keepends=True)[: text.count(b"\n") // 2])
        num_points //= 2


class MetricsMirror:
    """Copies the metrics file of a supervisor to the cluster, from a background thread."""

    def __init__(self, client: Client, run_id: str, holder: str, path: Path) -> None:
        """`holder` is the Lease identity of the supervisor, `path` its metrics file."""
        self._client = client
        self._run_id = run_id
        self._holder = holder
        self._path = path
        self._lock = threading.Lock()
        """Held during a write."""
        self._object: dict[str, Any] | None = None
        """The ConfigMap as this process last stored it; None if it may have changed since."""
        self._written: tuple[int, ...] = ()
        """Inode, size and modification time of the file that was written last."""
        self._pause_seconds = LEAST_PAUSE_SECONDS
        self._closed = threading.Event()

    def begin(self) -> None:
        """Starts the thread that writes new points. First writes the file from the cluster, unless an earlier
        supervisor in this pod has left it.

        Raises Refused, Unreachable, OSError.
        """
        if not self._path.exists():
            with contextlib.suppress(DamagedRecord):  # points must not keep a run from being supervised
                _, data = read_metrics(self._client, self._run_id)
                if data is not None:
                    metrics.replace_file(self._path, data)
        background.start("metrics in the cluster", self._turn, self._closed, self._client.health, is_paced=True)

    def close(self) -> None:
        """Stops the thread; new points are not written."""
        self._closed.set()

    def flush(self) -> None:
        """Writes new points now. Points are lost if the cluster refuses them: training and its record go first."""
        with contextlib.suppress(EngineError, OSError):
            self._write()

    def _turn(self) -> bool:
        """Writes new points after a pause; returns whether the thread must end."""
        if self._closed.wait(self._pause_seconds):
            return True
        try:
            self._write()
        except HeldElsewhere:
            return True
        return False

    def _write(self) -> None:
        """Writes the file if it has changed. Raises HeldElsewhere, Refused, Unreachable, OSError."""
        with self._lock:
            try:
                found = self._path.stat()
            except FileNotFoundError:
                return
            now = (found.st_ino, found.st_size, found.st_mtime_ns)
            if now == self._written:
                return
            data = packed(self._path.read_bytes())
            self._put(base64.b64encode(data).decode())
            self._written = now
            self._pause_seconds = min(max(LEAST_PAUSE_SECONDS, len(data) / BYTES_A_SECOND), MOST_PAUSE_SECONDS)

    def _put(self, text: str) -> None:
        """Stores the text. A ConfigMap that another client has changed is read again by the next write."""
        found, self._object = self._object or self._current(), None
        data = {SERIES: text}
        if found is None:
            owner_config_map = self._client.get("v1", "ConfigMap", self._run_id)
            self._object = self._client.create({**_manifest(owner_config_map), "binaryData": data})
        else:
            path = self._client.path("v1", "ConfigMap", layout.metrics_name(self._run_id))
            self._object = self._client.call("PUT", path, {**found, "binaryData": data})

    def _current(self) -> dict[str, Any] | None:
        """Returns the ConfigMap, or None if it does not exist. Its resource version keeps this process from overwriting
        what another supervisor writes later. Raises HeldElsewhere if another supervisor holds the run's Lease.
        """
        found = self._client.get_if_exists("v1", "ConfigMap", layout.metrics_name(self._run_id))
        if not lease.is_held_by(self._client, self._run_id, self._holder):
            raise HeldElsewhere("another supervisor holds the run")
        return found


def _manifest(owner_config_map: Mapping[str, Any]) -> dict[str, Any]:
    meta = owner_config_map["metadata"]
    # Lists of runs skip ConfigMaps with this label.
    its = labels.like(meta["labels"], labels.RECORD, **{layout.CODE_LABEL: layout.RECORD})
    made = manifests.core("ConfigMap", layout.metrics_name(meta["name"]), meta["namespace"], its)
    return manifests.owned(made, owner_config_map)
