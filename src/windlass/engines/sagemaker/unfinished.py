"""The marker of what is left to do of the end of a run: training jobs to end, a model to bring home.

It is written before the end is recorded, and removed when all is done; each command that looks at the run tries again.
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
class Left:
    """What could not be done."""

    jobs: str = ""
    """Why it is not known that all training jobs have ended; empty where they have."""
    jobs_hint: str = ""
    """How the user ends them."""
    model: str = ""
    """The address of the model; empty where it is at home, or there is none."""
    why_model: str = ""
    """Why it could not be brought home."""

    def condition(self, run_id: str, since: float | None) -> ConditionChanged | None:
        """As the condition of the run; None where nothing is known to be left."""
        if self.jobs:
            message = f"training jobs of this run may go on: {self.jobs}"
            fix = f"windlass stop {run_id} asks again; {self.jobs_hint}"
            return ConditionChanged("JobUnknown", message, since, fix=fix)
        if self.model:
            message = f"the model is in {self.model}: {self.why_model}"
            fix = f"windlass cp {run_id}:output . copies it to this machine"
            return ConditionChanged("ModelAway", message, since, fix=fix)
        return None


class Unfinished:
    """The marker of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LEFTOVERS

    def begin(self) -> None:
        """The end is about to be recorded."""
        if not self._path.exists():
            self.write(Left(), is_over=False)

    def touched_at(self) -> float | None:
        """When it was last written, in Unix seconds; None where nothing is left."""
        with contextlib.suppress(OSError):
            return self._path.stat().st_mtime
        return None

    def read(self) -> Left:
        """What is left; nothing is known of it while the end is being recorded."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Left(**json.loads(self._path.read_bytes()))
        return Left()

    def write(self, left: Left, *, is_over: bool = True) -> None:
        """Keep what is left; the marker goes where nothing is, and it `is_over`."""
        with contextlib.suppress(OSError):  # a full disk: what the marker had is tried again
            if is_over and not (left.jobs or left.model):
                self._path.unlink(missing_ok=True)
            else:
                write_whole(self._path, json.dumps(asdict(left)).encode())
