"""Crash marker of a supervisor: a file that its top-level handler writes, read by the next command that looks.

Nothing else says that a supervisor crashed: `supervisor.log` also has what libraries log, and is evidence only.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARKER: Final = "supervisor.crash"
MAX_CHARS: Final = 8000
BROKE: Final = "Windlass itself broke: "
"""How the cause of a run begins that was given up because its supervisors crashed."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A supervisor that ended by an exception of its own."""

    at: float
    """Unix seconds."""
    traceback: str
    """Empty where the disk was too full to write it."""

    @property
    def summary(self) -> str:
        """The last line of the traceback."""
        return self.traceback.splitlines()[-1] if self.traceback else "its traceback could not be written"


def mark(run_dir: Path, error: BaseException) -> None:
    """Write the marker, whole or, on a full disk, empty: a name often fits where a block does not."""
    text = "".join(traceback.format_exception(error)).strip()[-MAX_CHARS:]
    partial = run_dir / f"{MARKER}.{os.getpid()}"
    try:
        partial.write_text(text)
        partial.replace(run_dir / MARKER)
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(partial, 0)
        with contextlib.suppress(OSError):
            partial.touch()
            partial.replace(run_dir / MARKER)


def read(run_dir: Path) -> Crash | None:
    """The crash of the run's last supervisor; None where it did not crash."""
    try:
        with open(run_dir / MARKER, errors="replace") as file:
            return Crash(os.fstat(file.fileno()).st_mtime, file.read().strip())
    except OSError:
        return None


def move_away(run_dir: Path, number: int) -> None:
    """Keep the marker as evidence, under a name that no longer marks anything."""
    with contextlib.suppress(OSError):
        (run_dir / MARKER).replace(run_dir / f"supervisor-{number}.crash")
