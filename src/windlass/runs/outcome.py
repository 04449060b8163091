"""Decides what follows when all ranks of an attempt have ended: another attempt, or which end of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from windlass.runs.history import Ended, History
from windlass.runs.record import Json, Phase, Status

TIMEOUT_EXIT_CODE: Final = 124
"""As `timeout(1)` gives it."""
TERMINATED_EXIT_CODE: Final = 143
"""As shells, and `Preempted` of `windlass.train.checkpoint`, say that SIGTERM ended them."""
RESUME_VARIABLE: Final = "WINDLASS_RESUME_FROM"
"""What names a checkpoint to a script; who cannot go on from that one names it too."""
MAX_WAIT_SECONDS: Final = 60.0
_ENDED_BY_US: Final = ("preemption", "resize", "hang")
"""Why attempts are ended that are to be followed by another one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows."""

    phase: Phase | None
    """How the run ends; None for another attempt."""
    exit_code: int | None = None
    cause: Json | None = None
    """The first cause, as it is to be recorded; None where there is nothing to explain."""
    reason: str | None = None
    """Why the attempt ended; None where it succeeded."""
    restarts_left: int = 0
    wait_seconds: float = 0.0
    """How long to wait before another attempt."""
    step: int | None = None
    """The highest step that is known of the attempt."""

    @property
    def attempt_phase(self) -> Phase:
        """How the attempt ended, if another one follows."""
        return {"preemption": Phase.PREEMPTED, "resize": Phase.STOPPED}.get(str(self.reason), Phase.FAILED)

    def attempt_end(self) -> dict[str, Any]:
        """What the event `attempt-end` carries."""
        return {
            "phase": self.attempt_phase, "reason": self.reason, **_known(step=self.step),
            "restarts_left": self.restarts_left, "wait_seconds": self.wait_seconds,
        }  # fmt: skip

    def end(self) -> dict[str, Any]:
        """What the event `end` carries."""
        return {"phase": self.phase, "exit_code": self.exit_code, **_known(reason=self.reason, step=self.step)}


def outcome(
    ended_by: str | None, cause: Mapping[str, Any] | None, history: History, policy: Json, *,
    is_free: bool = False, nothing_left: bool = False, at: float = 0.0,
) -> Outcome:  # fmt: skip
    """What follows the attempt that goes on in `history`, now that it has ended.

    `ended_by` is `stop`, `timeout`, `preemption`, `resize`, `hang`, or None and `failure` where the ranks ended by
    themselves. `cause` is what `blame` found, with `node_lost` where a node died. `policy` is the plan's. `is_free`: it
    uses up no restart, since an elastic job goes on with fewer nodes. `nothing_left`: nobody saw its end. `at` is when
    it ended, in unix seconds.
    """
    code = cause.get("exit_code") if cause else 0
    step = history.now.step
    if ended_by == "stop":
        return Outcome(Phase.STOPPED, code, reason="stop", step=step)
    if ended_by == "timeout":
        return timed_out(policy, step)
    if cause is None and (ended_by not in _ENDED_BY_US or ended_by == "hang"):
        return Outcome(Phase.SUCCEEDED, 0, step=step)
    reason = "node-loss" if nothing_left else reason_of(ended_by, cause or {})
    told = None if reason in ("preemption", "resize") and ended_by == reason else cause
    end = Outcome(Phase.FAILED, code, told, reason, step=step)
    now = history.ending(reason, cause, at)
    counts = reason != "resize" and not is_free
    left = policy["max_restarts"] if history.restarts_left is None else history.restarts_left
    if counts and same_step(now, history.ended):
        return replace(end, reason="same-step-twice", restarts_left=left)
    if RESUME_VARIABLE in str((cause or {}).get("summary", "")):
        return replace(end, restarts_left=left)  # the checkpoint that was asked for cannot be had, now or later
    if not counts or (left > 0 and reason in policy["restart_on"]):
        wait = wait_seconds([*history.ended, now]) if counts else 0.0
        return replace(end, phase=None, restarts_left=left - counts, wait_seconds=wait)
    if nothing_left:
        return replace(end, phase=Phase.LOST, exit_code=None)
    return replace(end, phase=Phase.STOPPED if told is None else Phase.FAILED, restarts_left=left)


def timed_out(policy: Json, step: int | None = None) -> Outcome:
    """The end of a run whose time limit has come."""
    cause = {"summary": f"the timeout of {policy['timeout_seconds']:g} s was reached"}
    return Outcome(Phase.FAILED, TIMEOUT_EXIT_CODE, cause, "timeout", step=step)


def is_late(status: Status, policy: Json, now: float) -> bool:
    """Whether the job's time limit has come, at `now` in unix seconds."""
    limit = policy["timeout_seconds"]
    return limit is not None and status.limited_seconds(now) >= limit


def may_restart(reason: str, history: History, policy: Json) -> bool:
    """Whether the policy allows another attempt for this reason."""
    left = policy["max_restarts"] if history.restarts_left is None else history.restarts_left
    return left > 0 and reason in policy["restart_on"]


def reason_of(ended_by: str | None, cause: Mapping[str, Any]) -> str:
    """Why an attempt ended. A machine that goes down sends SIGTERM to ranks as well: that is no failure of theirs."""
    if ended_by in _ENDED_BY_US:
        return str(ended_by)
    if "node_lost" in cause:
        return "node-loss"
    is_terminated = cause.get("signal") == "SIGTERM" or cause.get("exit_code") == TERMINATED_EXIT_CODE
    return "preemption" if is_terminated else "failure"


def same_step(now: Ended, before: Sequence[Ended]) -> bool:
    """Whether an earlier attempt died in the same way at the same step, and none since has come beyond it."""
    if now.way is None or now.step is None or now.reason != "failure":
        return False
    for ended in reversed(before):
        if ended.step is not None and ended.step > now.step:
            return False
        if (ended.reason, ended.step, ended.way) == ("failure", now.step, now.way):
            return True
    return False


def wait_seconds(ended: Sequence[Ended]) -> float:
    """Back-off before another attempt: 0, 1, 2, 4 … 60 s before the n-th in a row that was no gain."""
    in_vain = 0
    for one in reversed(ended):
        if one.gained:
            break
        in_vain += one.reason != "resize"
    return min(MAX_WAIT_SECONDS, 2.0 ** min(in_vain - 2, 10)) if in_vain > 1 else 0.0


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
