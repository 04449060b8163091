"""The verdict on a run: what `windlass why` prints."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.diagnose.verdict import Diagnosis
from windlass.runs.data import DataDifference
from windlass.runs.ledger import Restart
from windlass.runs.record import Status


@dataclass(frozen=True, slots=True)
class Why:
    """The verdict on a run, other explanations, and what happened to the run."""

    status: Status
    diagnosis: Diagnosis
    restarts: tuple[Restart, ...]
    """Every attempt but the first."""
    data_differences: tuple[DataDifference, ...] = ()
    """Data sets that an earlier run of the job has not read."""
