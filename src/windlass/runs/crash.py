"""Crash marker of a supervisor: a file written by its top-level exception handler and read by the next command.

Only the marker counts as a crash. `supervisor.log` also contains messages of libraries, and is evidence only.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.runs.events import RootCause

MARKER: Final = "supervisor.crash"
MAX_CHARS: Final = 8000
BROKE: Final = "Windlass itself broke: "
"""Prefix of the cause of a run that was lost because its supervisors crashed."""
LOST: Final = "the run's supervisor and nodes are gone: killed, or the machine was restarted"


@dataclass(frozen=True, slots=True)
class Crash:
    """A supervisor's exit by an unhandled exception."""

    at: float
    """Time of the crash in Unix seconds."""
    traceback: str
    """Traceback; empty if the disk was too full to write it."""

    @property
    def summary(self) -> str:
        """Last line of the traceback."""
        return self.traceback.splitlines()[-1] if self.traceback else "its traceback could not be written"


def mark(run_dir: Path, error: BaseException) -> None:
    """Writes the marker. On a full disk the marker is empty, because a directory entry often still fits."""
    import traceback  # the module is needed only after a crash

    text = "".join(traceback.format_exception(error)).strip()[-MAX_CHARS:]
    partial = run_dir / f"{MARKER}.{os.getpid()}"
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(run_dir / MARKER)
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(partial, 0)
        with contextlib.suppress(OSError):
            partial.touch()
            partial.replace(run_dir / MARKER)


def read(run_dir: Path) -> Crash | None:
    """Returns the crash of the run's last supervisor; None if it did not crash."""
    try:
        with open(run_dir / MARKER, encoding="utf-8", errors="replace") as file:
            return Crash(os.fstat(file.fileno()).st_mtime, file.read().strip())
    except OSError:
        return None


def move_away(run_dir: Path, number: int) -> None:
    """Renames the marker. It remains as evidence but no longer counts as a crash."""
    with contextlib.suppress(OSError):
        (run_dir / MARKER).replace(run_dir / f"supervisor-{number}.crash")


def cause_of_loss(run_dir: Path) -> RootCause:
    """Returns the cause for a run whose supervisor and nodes are gone: killed, unless the supervisor left a crash
    marker.
    """
    crashed = read(run_dir)
    if crashed is None:
        return RootCause(LOST)
    return RootCause(f"{BROKE}{crashed.summary}", traceback=crashed.traceback)
