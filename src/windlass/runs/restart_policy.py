"""Restart policy: decides whether and when another attempt follows an ended one, and otherwise how the run
ends. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from windlass.plan.environment import RESUME_VARIABLE
from windlass.runs.events import AttemptEnded, RootCause, RunEnded, RunEnding
from windlass.runs.history import Ended, History
from windlass.runs.phase import Phase
from windlass.runs.record import Status

if TYPE_CHECKING:
    from windlass.plan.plan import Policy

TIMEOUT_EXIT_CODE: Final = 124
"""Exit code of timeout(1)."""
TERMINATED_EXIT_CODE: Final = 143
"""Exit code by which shells, and `Preempted` of `windlass.train.checkpoint`, report an end by SIGTERM."""
NOT_UPLOADED_EXIT_CODE: Final = 1
"""Exit code of a run that was ended because the store refuses its outputs."""
MAX_WAIT_SECONDS: Final = 60.0
MAX_IN_VAIN: Final = 5
"""Number of consecutive attempts that may end by a planned eviction without progress. Each further attempt uses up a
restart."""
_ENDED_BY_US: Final = ("preemption", "resize", "hang")
"""Reasons for which the supervisor itself ends an attempt and starts another."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Decision after an attempt."""

    phase: Phase | None
    """Phase in which the run ends; None if another attempt follows."""
    exit_code: int | None = None
    cause: RootCause | None = None
    """Root cause to record; None for an end that is not a failure."""
    reason: str | None = None
    """Why the attempt ended; None if it succeeded."""
    restarts_left: int = 0
    wait_seconds: float = 0.0
    """Seconds to wait before another attempt."""
    step: int | None = None
    """Highest known step of the attempt."""

    def attempt_end(self, died_at: float | None = None) -> AttemptEnded:
        """Returns the event for an ended attempt that is followed by another. `died_at` is set if the end was not
        observed; see `AttemptEnded`.
        """
        phase = {"preemption": Phase.PREEMPTED, "resize": Phase.STOPPED}.get(str(self.reason), Phase.FAILED)
        return AttemptEnded(
            phase,
            self.reason,
            restarts_left=self.restarts_left,
            wait_seconds=self.wait_seconds,
            **_known(step=self.step, died_at=died_at),
        )

    def ending(self, died_at: float | None = None, nodes: tuple[int, ...] = ()) -> RunEnding:
        """Returns the event for a run without further attempts whose outputs are still uploaded, or fetched from
        `nodes`. `died_at` as for `attempt_end`.
        """
        known = _known(reason=self.reason, step=self.step, died_at=died_at, nodes=nodes or None)
        return RunEnding(self.phase, self.exit_code, **known)

    def end(self, died_at: float | None = None) -> RunEnded:
        """Returns the event for the end of a run. `died_at` as for `attempt_end`."""
        return RunEnded(self.phase, self.exit_code, **_known(reason=self.reason, step=self.step, died_at=died_at))


def outcome(
    ended_by: str | None,
    cause: RootCause | None,
    history: History,
    policy: Policy,
    *,
    is_free: bool = False,
    is_planned: bool = False,
    nothing_left: bool = False,
    at: float = 0.0,
) -> Outcome:
    """Returns the decision after the end of the current attempt of `history`.

    `ended_by` is `stop`, `timeout`, `upload`, `preemption`, `resize`, `hang`, or None or `failure` if the ranks ended
    by themselves. `cause` is the root cause, if anything failed. `policy` is the policy of the plan. `is_free`: the
    restart is not counted, because an elastic job continues with fewer nodes. `is_planned`: the attempt ended by a
    planned eviction, which is subject to the policy but not counted either, unless consecutive attempts are evicted
    without progress. `nothing_left`: the end was not observed. `at` is the time of the end in Unix seconds.
    """
    code = 0 if cause is None else cause.exit_code
    step = history.now.step
    if ended_by == "stop":
        return Outcome(Phase.STOPPED, code, reason="stop", step=step)
    if ended_by == "timeout":
        return timed_out(policy, step)
    if ended_by == "upload":
        return Outcome(Phase.FAILED, NOT_UPLOADED_EXIT_CODE, cause, "upload", step=step)
    if cause is None and (ended_by not in _ENDED_BY_US or ended_by == "hang"):
        return Outcome(Phase.SUCCEEDED, 0, step=step)
    reason = "node-loss" if nothing_left else reason_of(ended_by, cause)
    recorded = None if reason in ("preemption", "resize") and ended_by == reason else cause
    left = policy.max_restarts if history.restarts_left is None else history.restarts_left
    end = Outcome(Phase.FAILED, code, recorded, reason, step=step, restarts_left=left)
    now = history.ending(reason, cause, at)
    counts = reason != "resize" and not is_free
    is_planned = is_planned and _in_vain([*history.ended, now]) <= MAX_IN_VAIN
    if counts and same_step(now, history.ended):
        return replace(end, reason="same-step-twice")
    if cause is not None and RESUME_VARIABLE in cause.summary:
        return end  # no attempt can restore the checkpoint that the user requested
    may_follow = policy.max_restarts > 0 if is_planned else left > 0
    follows = not counts or (may_follow and reason in policy.restart_on)
    if follows and counts and same_error(now, history.ended):
        return replace(end, reason="same-error-twice")
    if follows:
        wait = wait_seconds([*history.ended, now]) if counts else 0.0
        return replace(end, phase=None, restarts_left=left - (counts and not is_planned), wait_seconds=wait)
    if nothing_left:
        return replace(end, phase=Phase.LOST, exit_code=None, restarts_left=0)
    return replace(end, phase=Phase.STOPPED if recorded is None else Phase.FAILED)


def timed_out(policy: Policy, step: int | None = None) -> Outcome:
    """Returns the end of a run whose time limit is reached."""
    cause = RootCause(f"the timeout of {policy.timeout_seconds:g} s was reached")
    return Outcome(Phase.FAILED, TIMEOUT_EXIT_CODE, cause, "timeout", step=step)


def is_late(status: Status, policy: Policy, now: float) -> bool:
    """Whether the job's time limit is reached at `now`, in Unix seconds."""
    limit = policy.timeout_seconds
    return limit is not None and status.times.limited_seconds(now) >= limit


def may_restart(reason: str, history: History, policy: Policy) -> bool:
    """Whether the policy allows another attempt for this reason."""
    left = policy.max_restarts if history.restarts_left is None else history.restarts_left
    return left > 0 and reason in policy.restart_on


def reason_of(ended_by: str | None, cause: RootCause | None) -> str:
    """Returns why an attempt ended. SIGTERM is a preemption, not a failure, because a shutting-down machine sends it to
    ranks.
    """
    if cause is None or ended_by in _ENDED_BY_US:
        return str(ended_by)
    if cause.node_lost is not None:
        return "node-loss"
    is_terminated = cause.signal == "SIGTERM" or cause.exit_code == TERMINATED_EXIT_CODE
    return "preemption" if is_terminated else "failure"


def same_step(now: Ended, before: Sequence[Ended]) -> bool:
    """Whether an earlier attempt failed equally at the same step, and no attempt since then got further."""
    if now.way is None or now.step is None or now.reason != "failure":
        return False
    for ended in reversed(before):
        if ended.step is not None and ended.step > now.step:
            return False
        if (ended.reason, ended.step, ended.way) == ("failure", now.step, now.way):
            return True
    return False


def same_error(now: Ended, before: Sequence[Ended]) -> bool:
    """Whether an earlier attempt had the same failure at its start, and no attempt since then got further."""
    if now.reason != "failure" or not now.failed_at_start or now.start is None:
        return False
    for ended in reversed(before):
        if not ended.failed_at_start:
            return False
        if ended.reason == "failure":
            return ended.start == now.start
    return False


def _in_vain(ended: Sequence[Ended]) -> int:
    """Returns the number of consecutive attempts, up to the last one, without progress."""
    found = 0
    for one in reversed(ended):
        if one.gained:
            break
        found += one.reason != "resize"
    return found


def wait_seconds(ended: Sequence[Ended]) -> float:
    """Returns the back-off before the nth consecutive attempt without progress: 0, 1, 2, 4 … 60 s."""
    in_vain = _in_vain(ended)
    return min(MAX_WAIT_SECONDS, 2.0 ** min(in_vain - 2, 10)) if in_vain > 1 else 0.0


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
