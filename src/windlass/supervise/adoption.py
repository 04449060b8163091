"""Adoption of a run whose supervisor is gone: ends the run, or computes when the next supervisor may start."""

from __future__ import annotations

from typing import Final

from windlass.runs import crash
from windlass.runs.phase import Phase
from windlass.runs.restart_policy import Outcome
from windlass.runs.store import RunWriter
from windlass.supervise.supervisor import Supervisor

MAX_CRASHES: Final = 3
"""Number of consecutive supervisor crashes without progress after which the run counts as lost."""
CRASH_WINDOW_SECONDS: Final = 600.0
"""Age from which a crash no longer counts, because its cause may have been fixed."""
FREE_ADOPTIONS: Final = 3
"""Number of consecutive supervisors without progress that are started without a pause."""
MAX_PAUSE_SECONDS: Final = 60.0


def settle(supervisor: Supervisor) -> bool:
    """Settles the record of a run without a supervisor if none of its processes is alive. Returns whether it did.

    A new supervisor is needed, and the run left unchanged, if its next attempt is due, if its outputs are not uploaded,
    or if its nodes outlive supervisors, because only a supervisor can find out how the attempt ended. Raises StoreFull.
    """
    supervisor.patience_seconds = 0.0  # a user waits for the command that settles the record
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
            return False  # a supervisor is needed to restart the ranks
    elif supervisor.is_to_stop():
        supervisor.end_run(Outcome(Phase.STOPPED, reason="stop"))
    elif _is_broken(supervisor):
        supervisor.end_run(Outcome(Phase.LOST, cause=lost))
    else:
        return False  # no attempt is running, or the nodes of the recorded attempt were never started
    return supervisor.ending is None


def observed_until(writer: RunWriter) -> float:
    """Returns when a supervisor last recorded a node event, in Unix seconds."""
    progress_at = writer.store.status(writer.status.id).progress.at or 0.0
    noted_at = max(event.time for event in writer.events() if event.kind != "adopted")
    return max(progress_at, noted_at)


def pause_seconds(supervisor: Supervisor) -> float:
    """Returns the seconds to wait before the next supervisor is started, because earlier ones made no progress."""
    history = supervisor.record.history
    in_vain = history.take_ups - FREE_ADOPTIONS
    pause = min(MAX_PAUSE_SECONDS, 2.0 ** min(in_vain, 10)) if in_vain >= 0 else 0.0
    return max(0.0, min(pause, history.taken_up_at + pause - supervisor.clock.time()))


def _is_broken(supervisor: Supervisor) -> bool:
    """Whether supervisors of this run crash repeatedly, so that another one would crash as well."""
    crashes = list(supervisor.record.history.crashes)
    if (last := crash.read(supervisor.run_dir)) is not None:
        crashes.append(last.at)
    return sum(supervisor.clock.time() - at < CRASH_WINDOW_SECONDS for at in crashes) >= MAX_CRASHES
