"""Stop request: a file in the run's folder, written by `stop`, read by the supervisor."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from windlass.worker.reserve import FULL_ERRORS

STOP: Final = "stop.json"
NOW: Final = "stop-now"
"""Empty file next to the stop request, for a stop without a grace period on a full disk."""


ELSEWHERE: Final = "elsewhere"
REMOVED: Final = "removed"
QUEUE: Final = "queue"
"""Reasons of a stop request on a cluster: made on another machine; the run was removed; Kueue deactivated its Workload
and will not admit it again."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Content of a stop request."""

    now: bool = False
    """Whether the ranks get no grace period."""
    reason: str = "asked"
    """Origin of the request: `asked` is the user, `SIGTERM` a machine that shuts down."""


def read_stop_request(run_dir: Path) -> StopRequest | None:
    """Reads the stop request of a run; None if there is none."""
    if (run_dir / NOW).exists():
        return StopRequest(now=True)
    try:
        text = (run_dir / STOP).read_text()
        data = json.loads(text) if text else {}  # on a full disk, the file is written empty
    except (OSError, ValueError):
        return None
    return StopRequest(bool(data.get("now")), str(data.get("reason", "asked")))


def clear_stop_request(run_dir: Path) -> None:
    """Removes the stop request of an ended run, so that it does not stop the resumed run. Raises OSError."""
    for name in (STOP, NOW):
        (run_dir / name).unlink(missing_ok=True)


def write_stop_request(run_dir: Path, request: StopRequest) -> None:
    """Writes a stop request atomically. Raises OSError.

    On a full disk the file is empty, which takes no space, and its name contains the request.
    """
    partial = run_dir / f"stop.{os.getpid()}"
    try:
        partial.write_text(json.dumps(asdict(request)))
    except OSError as error:
        if error.errno not in FULL_ERRORS or not partial.exists():
            raise
        os.truncate(partial, 0)
        partial.replace(run_dir / (NOW if request.now else STOP))
        return
    partial.replace(run_dir / STOP)
