"""Decides which ended runs can be resumed, and records a resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import UsageError
from windlass.runs.events import RunResumed
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import RunWriter

if TYPE_CHECKING:
    from windlass.plan.plan import Plan

RESUMABLE: Final = frozenset({Phase.FAILED, Phase.STOPPED, Phase.LOST})
"""Phases of ended runs that can be resumed."""


def require_resumable(status: Status) -> None:
    """Raises UsageError if the run cannot be resumed; to be called before anything is changed."""
    if status.phase not in RESUMABLE:
        if status.phase is Phase.SUCCEEDED:
            raise UsageError(
                f"{status.id} has succeeded: nothing is left to do", f"a new run of its job: windlass rerun {status.id}"
            )
        raise UsageError(f"{status.id} has not ended: it is {status.phase}", f"windlass logs -f {status.id}")


def reopen(writer: RunWriter, run_dir: Path, plan: Plan | None, checkpoint: str | None) -> None:
    """Records that an ended run is resumed, with the fields that change. Raises UsageError, StoreError."""
    status = writer.status
    require_resumable(status)
    from windlass.runs.stop_request import clear_stop_request  # a list of runs needs none

    clear_stop_request(run_dir)
    policy = (writer.store.plan(status.id) if plan is None else plan).policy
    new: dict[str, Any] = {"machine": writer.store.machine, "restarts": policy.max_restarts}
    if plan is not None:
        new["nodes"] = plan.num_nodes
    if checkpoint is not None:
        new["from_"] = checkpoint
    writer.append(RunResumed("asked", **new), plan=None if plan is None else plan.to_text())
