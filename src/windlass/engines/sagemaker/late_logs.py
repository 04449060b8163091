"""Reads lines that arrive in the logs of a training job after its attempt has ended, when a command needs them.

CloudWatch may be minutes late, and a run does not wait for it so long. A file in the attempt's folder says that its
logs were not known to be whole at its end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from windlass.engines.sagemaker.description import num_starts, read_description
from windlass.engines.sagemaker.host_log import HostLog, place_of
from windlass.engines.sagemaker.service import Absent, Service
from windlass.worker.protocol import NodeSpec

LATE: Final = "late-logs"
"""File in the folder of an attempt."""
LATEST_SECONDS: Final = 3600.0
"""After the end of an attempt, until when its logs are asked for again once they were read."""


def mark_late(folder: Path) -> None:
    """Note that more lines may arrive in the logs of an attempt."""
    with contextlib.suppress(OSError):
        (folder / LATE).touch()


def read_late_logs(
    connect: Callable[[], Service], name: str, number: int, specs: Sequence[NodeSpec], folder: Path
) -> None:
    """Read what has arrived of the logs of a training job, if more may have. Raises EngineError, OSError."""
    try:
        ended_at = (folder / LATE).stat().st_mtime
    except FileNotFoundError:
        return
    service, closed, asked_at = connect(), threading.Event(), time.time()
    logs = [HostLog(service, folder, one.node, tuple(rank.rank for rank in one.ranks), number, closed) for one in specs]
    with contextlib.suppress(Absent):  # of hosts on this machine that were removed
        if not (streams := service.log_streams(name, is_over=True)):
            service.describe(name)  # a login of another account has none of them: that is an error
        for stream in streams:
            if 0 <= (place := place_of(stream)) < len(logs):
                logs[place].read(stream)
    starts = num_starts(read_description(folder))
    if all(log.has_end(starts) for log in logs) or asked_at - ended_at > LATEST_SECONDS:
        (folder / LATE).unlink(missing_ok=True)
