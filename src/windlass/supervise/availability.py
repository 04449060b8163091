"""Availability of a run's target: whether this supervisor may act for the run, and when to retry after an outage."""

from __future__ import annotations

from typing import Final

from windlass.errors import error_line
from windlass.plan.plan import Policy
from windlass.runs.clock import Clock
from windlass.runs.events import Warned
from windlass.supervise.backend import Backend, HeldElsewhere, TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.supervise.transfers import TransferInterrupted

TRANSFER_PAUSE_SECONDS: Final = 5.0
"""Pause before the first retry of a transfer whose store did not answer; doubled each time."""
MAX_PAUSE_SECONDS: Final = 60.0
"""Maximum pause between two attempts to reach an unavailable target."""
TROUBLE_SECONDS: Final = 10.0
"""Duration from which an outage of the target is recorded; most are shorter."""


class Availability:
    """Whether the target of one run can be used now. Times are Unix seconds."""

    def __init__(self, backend: Backend, record: Recorder, policy: Policy, clock: Clock) -> None:
        self.is_holder: bool | None = None
        """Whether this supervisor holds the run.

        None while another one may hold it, False while the target is unavailable.
        """
        self._backend = backend
        self._record = record
        self._policy = policy
        self._clock = clock
        self._hold_at = 0.0
        self._num_delays = 0
        """Number of consecutive failures to reach the target."""
        self._num_interrupted = 0
        """Number of transfer retries after a store did not answer."""
        self._trouble_since: float | None = None
        """Start of the target's outage by the monotonic clock; None while the target answers."""

    def acquire(self) -> bool:
        """Acquires the run unless this supervisor holds it. Returns False if another supervisor holds it."""
        if not self.is_holder and self._clock.time() >= self._hold_at:
            try:
                self.is_holder = True if self._backend.hold() else None
            except HeldElsewhere:  # the other supervisor owns the record, so nothing is written
                return False
            except TargetUnavailable as error:
                self._hold_at = self.retry_at(error)
                self.is_holder = False
            if self.is_holder:
                self._num_delays = 0
        return not self._backend.is_lost_to_another

    def note_available(self) -> None:
        """Records that the target has answered."""
        self._num_delays = 0
        self._record.condition(None)

    def retry_at(self, error: TargetUnavailable) -> float:
        """Returns when to retry an unavailable target. Pauses double up to `MAX_PAUSE_SECONDS`; retries are not
        limited.
        """
        self._record.condition(error.kind, error.message, error.hint)
        pause = min(MAX_PAUSE_SECONDS, 2.0 ** min(self._num_delays, 10))
        self._num_delays += 1
        return self._clock.time() + pause

    def move_again_at(self, what: str, error: Exception) -> float | None:
        """Returns when to retry a transfer that failed with `error`. None for a permanent error, or after as many
        retries as the job allows restarts.
        """
        policy = self._policy
        if not isinstance(error, TransferInterrupted):
            return None
        if self._num_interrupted >= policy.max_restarts or "failure" not in policy.restart_on:
            return None
        pause = min(MAX_PAUSE_SECONDS, TRANSFER_PAUSE_SECONDS * 2.0 ** min(self._num_interrupted, 10))
        self._num_interrupted += 1
        words = f"try {self._num_interrupted} of {policy.max_restarts} follows in {pause:g} s"
        self._record.note(Warned(f"the files could not be {what}: {error_line(error)}; {words}"))
        return self._clock.time() + pause

    def note_trouble(self) -> None:
        """Records an outage of the target once it has lasted for some time, and its end."""
        trouble = self._backend.trouble()
        if trouble is None:
            self._trouble_since = None
            self._record.condition(None)
            return
        now = self._clock.monotonic()
        self._trouble_since = now if self._trouble_since is None else self._trouble_since
        if now - self._trouble_since >= TROUBLE_SECONDS:
            self._record.condition(trouble.kind, trouble.message, trouble.hint)
