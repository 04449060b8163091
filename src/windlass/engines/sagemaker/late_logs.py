"""Reads log lines that arrive after the attempt of a training job has ended, when a command needs them.

CloudWatch may be minutes late, which is longer than a run waits. A file in the attempt's folder marks logs that were
possibly incomplete at its end.
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
"""File in the folder of an attempt: its logs may be incomplete."""
LATEST_SECONDS: Final = 3600.0
"""Seconds after the end of an attempt until its logs are considered complete."""


def mark_late(folder: Path) -> None:
    """Marks the logs of an attempt as possibly incomplete."""
    with contextlib.suppress(OSError):
        (folder / LATE).touch()


def read_late_logs(
    connect: Callable[[], Service], name: str, number: int, specs: Sequence[NodeSpec], folder: Path
) -> None:
    """Reads new log lines of a training job if its logs are marked as incomplete, and adds their points to the metrics
    of the run.

    Raises EngineError, OSError.
    """
    try:
        ended_at = (folder / LATE).stat().st_mtime
    except FileNotFoundError:
        return
    service, closed, asked_at = connect(), threading.Event(), time.time()
    logs = [HostLog(service, folder, one.node, tuple(rank.rank for rank in one.ranks), number, closed) for one in specs]
    with contextlib.suppress(Absent):  # an emulated job may have been deleted
        if not (streams := service.log_streams(name, is_over=True)):
            # raises an error if the login belongs to another account, which lacks the job's streams
            service.describe(name)
        for stream in streams:
            if 0 <= (place := place_of(stream)) < len(logs):
                logs[place].read(stream)
    from windlass.runs.metrics import MetricsFile  # imports all patterns of training logs; a submission needs none

    points = MetricsFile(folder.parent)
    for log in logs:
        for event in log.metrics():
            points.append(number, log.node, event.seq, event.series)
    starts = num_starts(read_description(folder))
    if all(log.has_end(starts) for log in logs) or asked_at - ended_at > LATEST_SECONDS:
        (folder / LATE).unlink(missing_ok=True)
