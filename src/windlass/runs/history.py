"""Tracks the steps and checkpoints of a run over its attempts, for the restart policy and the next attempt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from windlass.plan.compose import Continuation
from windlass.runs import events
from windlass.runs.events import CheckpointChanged, Entry, Event, RootCause
from windlass.runs.record import Status

LONG_SECONDS: Final = 600.0
"""An attempt of at least this duration is not a failed start, even if its script reports no progress."""
LAST_LINE: Final = "; its last line: "
"""Separator before the last log line, in the summary of a root cause without a traceback; see
`worker/root_cause.py`."""
_PLACE: Final = re.compile(r'^\s+File "([^"]+)", line (\d+)', re.MULTILINE)
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\bpid\W{0,4}\d+|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?", re.IGNORECASE)
"""Parts of messages that differ between attempts: addresses, process ids, times."""
_OUTSIDE: Final = re.compile(
    r"stale file handle|input/output error|transport endpoint|unavailable|bad gateway|too many requests|"
    r"name resolution|connection (?:refused|reset)|\b(?:429|50[0234])\b",
    re.IGNORECASE,
)
"""Errors of services and file systems. They may not recur, even if a later attempt reaches the same step."""
NO_PROGRESS: Final = (events.SupervisorRestarted, events.ConditionChanged, events.Warned)
"""Events that a supervisor records at its start. These events do not show that supervisors have stopped crashing."""


@dataclass(frozen=True, slots=True)
class Ended:
    """End of one attempt, reduced to the facts that the restart policy uses."""

    reason: str
    step: int | None
    """Highest known step of the attempt."""
    way: str | None
    """Key of the failure, to recognize a repetition: the line of an exception, or a fatal signal."""
    gained: bool
    """Whether the attempt got further than all earlier ones: by a checkpoint, a step or, if no steps are reported, in
    time."""
    failed_at_start: bool = False
    """Whether the attempt failed early, without any progress report or checkpoint."""
    start: str | None = None
    """Key of a failure at the start, to recognize a repetition: exit code, last line, place, and the restored
    checkpoint; None if the error may not occur in another attempt."""


@dataclass(slots=True)
class Going:
    """State of the current attempt."""

    began_at: float = 0.0
    """Start of the attempt in Unix seconds."""
    restored: int | None = None
    """Step of the checkpoint that the attempt continued from."""
    first: int | None = None
    """First step that the attempt reported."""
    last: int | None = None
    highest: int | None = None
    saved: bool = False
    reported: bool = False
    """Whether the attempt has reported any progress."""
    caught_up: bool = False
    """Whether the attempt has caught up with the highest earlier step, or started there."""
    is_global: bool = True
    """Whether steps count over the whole run. False once a step was lower than the previous one, as if counted per
    epoch."""
    first_step_of: int | None = None
    """Rank whose output has shown its first step."""
    shutdown: str | None = None
    """Why a supervisor is ending the attempt; None if the attempt continues."""
    silent_seconds: float = 0.0
    """Seconds without output of the ranks, if a hang was recorded."""
    restored_by: CheckpointChanged | None = None
    """Restore, by Windlass or logged by the script, from which the attempt continued."""

    def is_new_restore(self, step: int | None) -> bool:
        """Whether a restore logged by the script is new information: the attempt's first restore, or one with a
        step.
        """
        known = self.restored_by
        return known is None or (known.source == "log" and known.step is None and step is not None)

    @property
    def step(self) -> int | None:
        """Step that the attempt has reached; None if unknown."""
        known = [step for step in (self.highest, self.restored) if step is not None]
        return max(known) if known and self.is_global else None


@dataclass(slots=True)
class History:
    """The attempts of a run so far, as the restart policy needs them."""

    ended: list[Ended] = field(default_factory=list)
    """Attempts that have ended since the run began or was last resumed."""
    highest: int | None = None
    """Highest step of all ended attempts."""
    restarts_left: int | None = None
    """Remaining restarts of the job; None before the first restart."""
    now: Going = field(default_factory=Going)
    obeyed: list[tuple[str, str]] = field(default_factory=list)
    """Action and time of each preemption notice from the instance metadata."""
    taken_up_at: float = 0.0
    """When a supervisor last took over the run, in Unix seconds."""
    observed_until: float = 0.0
    """Until when the previous supervisor observed the attempt, in Unix seconds; 0 if unknown."""
    take_ups: int = 0
    """Number of supervisors that took over the run since the last other event."""
    crashes: list[float] = field(default_factory=list)
    """Times of consecutive supervisor crashes without any other event between them, in Unix seconds."""
    due_at: float = 0.0
    """Earliest start of the next attempt in Unix seconds; 0 for the first attempt."""
    _resumed_at: float = 0.0
    _cause: RootCause | None = None

    @classmethod
    def of(cls, record: Iterable[Event]) -> History:
        """Builds the history from the events of a run."""
        history = cls()
        for event in record:
            history.take(event.entry, event.time)
        return history

    def take(self, entry: Entry, at: float = 0.0) -> None:
        """Adds an event of the record, observed at `at` in Unix seconds."""
        if not isinstance(entry, NO_PROGRESS):
            self.take_ups = 0
            self.crashes.clear()
        match entry:
            case events.SupervisorRestarted():
                self._take_up(entry, at)
            case events.AttemptStarted():
                self.now, self._cause = Going(began_at=at), None
            case events.Progress(step=step):
                self.now.reported = self.now.reported or _is_training(entry)
                if step is not None:
                    self.now.highest = max(self.now.highest or 0, step)
            case events.CheckpointChanged():
                self._take_checkpoint(entry)
            case events.FirstStep(rank=rank):
                self.now.first_step_of = rank
            case events.CaughtUp():
                self.now.caught_up = True
            case events.ShutdownBegun(reason):
                self.now.shutdown = reason
            case events.HangDetected(seconds=seconds):
                self.now.silent_seconds = max(self.now.silent_seconds, seconds)
            case events.HangEnded():
                self.now.silent_seconds = 0.0
            case events.RootCause():
                self._cause = entry
            case events.AttemptEnded():
                self._end(entry, at)
                self.restarts_left = self.restarts_left if entry.restarts_left is None else entry.restarts_left
                self.due_at = at + (entry.wait_seconds or 0.0)
            case events.RunEnded():
                self._end(entry, at)
            case events.RunResumed():
                self.ended.clear()
                self.restarts_left = None
                self.due_at = self._resumed_at = at
            case events.PreemptionNotice(source="imds"):
                self.obeyed.append((entry.action, entry.time))

    def why_begun(self, status: Status) -> str:
        """Returns the reason of the next attempt: `first`, `resume`, or why the previous one ended."""
        if self.ended:
            return self.ended[-1].reason
        return "resume" if status.attempts else "first"

    def continuation(self, status: Status) -> Continuation:
        """Returns the fields of the next attempt that follow from the record."""
        return Continuation(status.resume_from, self._resumed_at, tuple(self.obeyed))

    def _take_up(self, entry: events.SupervisorRestarted, at: float) -> None:
        self.take_ups += 1
        self.taken_up_at = at
        self.observed_until = entry.observed_until or 0.0
        if entry.crash is not None:
            self.crashes.append(at if entry.crashed_at is None else entry.crashed_at)

    def _take_checkpoint(self, entry: events.CheckpointChanged) -> None:
        if entry.action == "saved":
            self.now.saved = True
            if entry.step is not None:
                self.now.highest = max(self.now.highest or 0, entry.step)
        elif entry.action == "restored":
            self.now.restored_by = entry
            if entry.source != "log":  # after a restore logged by the script, its first step decides
                self.now.restored = entry.step  # the step is None for a file of the script's own format

    def reach(self, step: int) -> bool:
        """Records a step of the current attempt. Returns True once, when the attempt catches up with the highest step
        of earlier attempts.
        """
        now = self.now
        if now.last is not None and step < now.last:
            now.is_global = False
        now.first = step if now.first is None else now.first
        now.last = step
        now.highest = max(now.highest or 0, step)
        if now.caught_up or not now.is_global or self.highest is None or step < self.highest:
            return False
        now.caught_up = True
        # If the script restored by itself, its first step shows where the attempt continued.
        return now.restored < self.highest if now.restored is not None else now.first <= self.highest

    def ending(self, reason: str, cause: RootCause | None, at: float = 0.0) -> Ended:
        """Returns the summary of the current attempt if it ends at `at`."""
        return self._ended(reason, self.now.step, cause, at)

    def _end(self, entry: events.AttemptEnded | events.RunEnded, at: float) -> None:
        reason = "failure" if entry.reason is None and isinstance(entry, events.AttemptEnded) else entry.reason or ""
        self.ended.append(self._ended(reason, entry.step, self._cause, at if entry.died_at is None else entry.died_at))
        if entry.step is not None:
            self.highest = max(self.highest or 0, entry.step)
        self.now, self._cause = Going(), None

    def _ended(self, reason: str, step: int | None, cause: RootCause | None, at: float) -> Ended:
        if step is None:
            further = at - self.now.began_at >= LONG_SECONDS
        else:
            further = self.highest is None or step > self.highest
        now = self.now
        gained = now.saved or further
        at_start = step is None and now.first is None and not (now.reported or gained)
        known = (None, None) if cause is None else (way(cause), start(cause, now.restored_by))
        return Ended(reason, step, known[0], gained, at_start, known[1])


def _is_training(progress: events.Progress) -> bool:
    """Whether the script has reported anything besides a message."""
    return progress.replace(message="", at=None) != events.Progress()


def way(cause: RootCause) -> str | None:
    """Returns a key that equal failures share. Returns None for causes that do not identify a failure, such as a kill
    or a lost peer.
    """
    is_outside = cause.transient and _OUTSIDE.search(cause.summary)
    if cause.signal in ("SIGKILL", "SIGTERM") or cause.blames_peer or is_outside:
        return None
    return cause.signal or (cause.summary if cause.traceback else None)


def start(cause: RootCause, restored: CheckpointChanged | None) -> str | None:
    """Returns a key that equal failures at the start of the script share; see `Ended.start`."""
    has_evidence = bool(cause.traceback) or LAST_LINE in cause.summary
    if cause.signal or cause.blames_peer or cause.transient or cause.node_lost is not None or not has_evidence:
        return None
    places = _PLACE.findall(cause.traceback)
    given = restored and (restored.name, restored.line)
    return repr((cause.exit_code, _VARYING.sub("…", cause.summary), places[-1:], given))
