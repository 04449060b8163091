"""The verdict on a run: output of `windlass why`."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.diagnose.verdict import Diagnosis
from windlass.runs.data import DataDifference
from windlass.runs.ledger import Restart
from windlass.runs.record import Status


@dataclass(frozen=True, slots=True)
class Why:
    """The verdict on a run, other possible explanations, and the history of the run."""

    status: Status
    diagnosis: Diagnosis
    restarts: tuple[Restart, ...]
    """All attempts after the first."""
    data_differences: tuple[DataDifference, ...] = ()
    """Data sets whose contents have changed since the newest earlier run of the job."""
