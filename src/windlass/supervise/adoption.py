"""Adoption of a run whose supervisor is gone: settles its record, or computes when the next supervisor may start."""

from __future__ import annotations

from typing import Final

from windlass.runs import crash
from windlass.runs.phase import Phase
from windlass.runs.restart_policy import Outcome
from windlass.runs.store import RunWriter
from windlass.supervise.supervisor import Supervisor

MAX_CRASHES: Final = 3
"""Number of supervisors that may crash in a row without progress before the run counts as lost."""
CRASH_WINDOW_SECONDS: Final = 600.0
"""How long a crash counts: its reason may have been repaired since."""
FREE_ADOPTIONS: Final = 3
"""Number of supervisors that may be started in a row without a pause and without progress."""
MAX_PAUSE_SECONDS: Final = 60.0


def settle(supervisor: Supervisor) -> bool:
    """Settle the record of a run without a supervisor, if none of its processes is alive; returns whether it did. A run
    whose next attempt is due, or whose outputs are not uploaded, is left to a new supervisor; so is an attempt whose
    nodes outlive supervisors, since only a supervisor can find out how it ended. Raises StoreFull.
    """
    supervisor.patience_seconds = 0.0  # a command waits
    lost = crash.cause_of_loss(supervisor.run_dir)
    if supervisor.ending is not None:
        if not _is_broken(supervisor):
            return False
        supervisor.end_uploading("supervisors crash again and again; see supervisor.crash in the folder of the run")
    elif supervisor.is_begun and supervisor.backend.outlives_supervisor:
        if not _is_broken(supervisor) or supervisor.backend.lives():
            return False
        supervisor.end_run(Outcome(Phase.LOST, cause=lost, reason="node-loss"))
    elif supervisor.is_on_target:
        monitor = supervisor.adopt()
        if monitor.attempt.live_nodes():
            return False
        if supervisor.is_to_stop() or supervisor.judge(monitor)[0].phase is not None:
            supervisor.end_attempt(monitor)
        elif _is_broken(supervisor):
            supervisor.end_run(Outcome(Phase.LOST, cause=lost, reason="node-loss"))
        else:
            return False  # a restart is due
    elif supervisor.is_to_stop():
        supervisor.end_run(Outcome(Phase.STOPPED, reason="stop"))
    elif _is_broken(supervisor):
        supervisor.end_run(Outcome(Phase.LOST, cause=lost))
    else:
        return False  # before the first attempt, between two, or an attempt is recorded whose nodes were not started
    return supervisor.ending is None


def observed_until(writer: RunWriter) -> float:
    """When a supervisor last recorded a node event, in unix seconds."""
    progress_at = writer.store.status(writer.status.id).progress.at or 0.0
    noted_at = max(event.time for event in writer.events() if event.kind != "adopted")
    return max(progress_at, noted_at)


def pause_seconds(supervisor: Supervisor) -> float:
    """How long to wait before the next supervisor is started: the ones before it made no progress."""
    history = supervisor.record.history
    in_vain = history.take_ups - FREE_ADOPTIONS
    pause = min(MAX_PAUSE_SECONDS, 2.0 ** min(in_vain, 10)) if in_vain >= 0 else 0.0
    return max(0.0, min(pause, history.taken_up_at + pause - supervisor.clock.time()))


def _is_broken(supervisor: Supervisor) -> bool:
    """Whether supervisors of this run crash again and again: another one would crash as well."""
    crashes = list(supervisor.record.history.crashes)
    if (last := crash.read(supervisor.run_dir)) is not None:
        crashes.append(last.at)
    return sum(supervisor.clock.time() - at < CRASH_WINDOW_SECONDS for at in crashes) >= MAX_CRASHES
