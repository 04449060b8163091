"""The verdict on a run: what `windlass why` prints."""

from __future__ import annotations

from dataclasses import dataclass
from windlass.diagnose.verdict import Diagnosis, Verdict
from windlass.runs.data import DataDifference
from windlass.runs.ledger import Restart
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.warnings import RunWarning


@dataclass(frozen=True, slots=True)
class VerdictView:
    """One explanation of how a run ended."""

    verdict: str
    """A stable code; docs/concepts/why.md lists all."""
    summary: str
    """What happened, in one sentence without a full stop."""
    rank: int | None
    """The rank that it began with; null where it concerns none or all."""
    evidence: tuple[str, ...]
    """What was observed that supports it, the strongest first."""
    fix: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Why(VerdictView):
    """The verdict on a run, with what it may be else."""

    id: str
    phase: Phase
    others: tuple[VerdictView, ...]
    """Other explanations, the likeliest first."""
    not_seen: tuple[str, ...]
    """What could not be examined, and why."""
    restarts: tuple[Restart, ...]
    """Every attempt but the first."""
    warnings: tuple[RunWarning, ...]
    """What did not end the run and may spoil its result."""
    data_differences: tuple[DataDifference, ...]
    """Data sets that an earlier run of the job has not read."""


def why_of(
    status: Status, diagnosis: Diagnosis, restarts: list[Restart], data_differences: tuple[DataDifference, ...] = ()
) -> Why:
    """The view of a diagnosis."""
    return Why(
        *_fields(diagnosis.verdict),
        id=status.id,
        phase=status.phase,
        others=tuple(VerdictView(*_fields(other)) for other in diagnosis.others),
        not_seen=diagnosis.not_seen,
        restarts=tuple(restarts),
        warnings=status.warnings,
        data_differences=data_differences,
    )


def _fields(verdict: Verdict) -> tuple[str, str, int | None, tuple[str, ...], str]:
    return verdict.code, verdict.summary, verdict.rank, verdict.evidence, verdict.fix
