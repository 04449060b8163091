"""Marker file of unfinished work at the end of a run: training jobs to stop, a model to fetch.

The marker is written before the end is recorded and removed when the work is done. Each command that reads the run
tries again.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.runs.events import ConditionChanged
from windlass.runs.store import LEFTOVERS
from windlass.storage.files import write_whole


@dataclass(frozen=True, slots=True)
class UnfinishedWork:
    """Work at the end of a run that could not be done."""

    jobs: str = ""
    """Why it is unknown whether all training jobs have ended; empty if they have."""
    jobs_hint: str = ""
    """How the user stops the training jobs."""
    model: str = ""
    """Address of the model; empty if it was fetched or does not exist."""
    why_model: str = ""
    """Why the model could not be fetched."""

    def condition(self, run_id: str, since: float | None) -> ConditionChanged | None:
        """Returns the unfinished work as a condition of the run; None if none is known."""
        if self.jobs:
            message = f"training jobs of this run may still be running: {self.jobs}"
            fix = f"windlass stop {run_id} requests the stop again; {self.jobs_hint}"
            return ConditionChanged("JobUnknown", message, since, fix=fix)
        if self.model:
            message = f"the model is in {self.model}: {self.why_model}"
            fix = f"windlass cp {run_id}:output . copies it to this machine"
            return ConditionChanged("ModelAway", message, since, fix=fix)
        return None


class UnfinishedMarker:
    """The marker file of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LEFTOVERS

    def begin(self) -> None:
        """Creates the marker before the end of the run is recorded."""
        if not self._path.exists():
            self.write(UnfinishedWork(), is_over=False)

    def touched_at(self) -> float | None:
        """Returns the Unix time of the last write; None if the marker does not exist."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_mtime
        return None

    def read(self) -> UnfinishedWork:
        """Reads the unfinished work; empty while the end is being recorded."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return UnfinishedWork(**json.loads(self._path.read_bytes()))
        return UnfinishedWork()

    def write(self, left: UnfinishedWork, *, is_over: bool = True) -> None:
        """Writes the unfinished work; removes the marker if there is none and the run `is_over`."""
        with contextlib.suppress(OSError):  # if the disk is full, the old marker remains and its work is repeated
            if is_over and not (left.jobs or left.model):
                self._path.unlink(missing_ok=True)
            else:
                write_whole(self._path, json.dumps(asdict(left)).encode())
