"""Supervisor of one run: starts attempt after attempt, and writes the run's record until the run has ended.

The supervisor may be killed at any moment. The nodes keep running, and the next supervisor, which is started by the
next command on the run, reads their events from the beginning and ignores events that are already recorded. On a full
disk, events wait in memory, and are read from the nodes again if the supervisor is killed.

Related modules: `availability.py` decides when the target can be used; `monitor.py` monitors one attempt and judges its
end; `hang_detection.py`, `liveness.py` and `shutdown.py` are its policies; `backend.py` is the interface of a target;
`process.py` is the operating system process. Time is read only through a `Clock`, and only the standard library is
imported.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from windlass.errors import EngineError, StoreFull, error_line
from windlass.plan.compose import ranks_by_node
from windlass.plan.plan import Plan
from windlass.runs import crash
from windlass.runs.clock import Clock
from windlass.runs.events import (
    AttemptStarted,
    PhaseEntered,
    PreemptionNotice,
    RootCause,
    RunEnded,
    RunEnding,
    StopRequested,
    Warned,
)
from windlass.runs.metrics import MetricsFile
from windlass.runs.phase import Phase
from windlass.runs.restart_policy import Outcome, is_late, timed_out
from windlass.runs.stop_request import StopRequest, read_stop_request
from windlass.runs.store import RunWriter
from windlass.supervise.availability import Availability
from windlass.supervise.backend import Attempt, Backend, HeldElsewhere, NotAdmitted, TargetUnavailable
from windlass.supervise.ingestion import RunProgress
from windlass.supervise.liveness import Liveness
from windlass.supervise.membership import Membership
from windlass.supervise.monitor import AttemptMonitor, RunState
from windlass.supervise.recorder import Recorder
from windlass.supervise.transfers import TransferRefused

POLL_SECONDS: Final = 0.5
ADOPTED_POLL_SECONDS: Final = 0.05
"""Polling interval for nodes started by another supervisor, which cannot wake this one."""
FULL_DISK_PATIENCE_SECONDS: Final = 600.0
STOP_PATIENCE_SECONDS: Final = 5.0
"""Seconds to write an end while a command waits. An end that is not recorded by then is left to the next command."""


class Supervisor:
    """The supervisor of one run."""

    def __init__(
        self,
        writer: RunWriter,
        plan: Plan,
        run_dir: Path,
        backend: Backend,
        clock: Clock | None = None,
        metrics: MetricsFile | None = None,
    ) -> None:
        """`metrics` replaces the metrics file of the run's folder with its usual limits."""
        self.writer = writer
        self.backend = backend
        self.plan = plan
        self.run_dir = run_dir
        self.clock = clock = clock or Clock()
        policy = plan.policy
        membership = Membership(plan.num_nodes, policy.min_nodes, policy.node_back_seconds)
        self.record = Recorder(writer, membership.take, clock=clock)
        self.availability = Availability(backend, self.record, policy, clock)
        self.run_state = RunState(
            self.record,
            policy,
            membership,
            Liveness(self.record, membership, backend.unreachable, clock),
            RunProgress(self.record, plan.num_nodes),
            clock,
            metrics or MetricsFile(run_dir),
            has_process_group=plan.nodes.launcher == "torchrun",
        )
        self.monitor: AttemptMonitor | None = None
        """Monitor of the current attempt; None between attempts."""
        self.next_at: float | None = None
        """Start of the next attempt in Unix seconds; None during an attempt."""
        self.ending: RunEnding | None = writer.status.ending
        """How the run ends once its outputs are uploaded or fetched; None before that is decided."""
        self.detached = False
        """Whether this supervisor left the run open: its nodes may keep running, and the next supervisor continues."""
        self.stop_request: StopRequest | None = None
        """Stop request by a signal; users request stops by files."""
        self.terminated = False
        """Whether the machine is shutting down (SIGTERM). The next command then adopts the run."""
        self.patience_seconds = FULL_DISK_PATIENCE_SECONDS
        self._upload_at = 0.0
        """Time of the next upload of the outputs in Unix seconds."""
        self._booted_at = clock.time() - clock.boottime()

    # -- main loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Supervises the run until it has ended."""
        if self.writer.status.phase.is_terminal:
            return
        if self.ending is None:
            self.next_at = 0.0 if self.is_begun else self.record.history.due_at
        while not self.detached and (self.monitor or self.ending or self.next_at is not None):
            if self.ending is not None:
                self._upload()
                continue
            if self.monitor is None:
                self._pause()
                continue
            self._turn(self.monitor)
            if not self.detached and self.monitor.attempt.over:
                self.end_attempt(self.monitor)

    @property
    def is_begun(self) -> bool:
        """Whether an attempt is in progress, according to the record."""
        attempts = self.writer.status.attempts
        return bool(attempts) and attempts[-1].ended_at is None

    @property
    def is_on_target(self) -> bool | None:
        """Whether an attempt is in progress and its nodes were started; None if that is unknown."""
        return self.is_begun and self.backend.is_started(self._attempt_dir(len(self.writer.status.attempts)))

    def adopt(self) -> AttemptMonitor:
        """Adopts the newest attempt."""
        self.record.begin_replay()
        number, members = self._newest()
        attempt = self.backend.adopt(self._attempt_dir(number), number, members, self.clock)
        self.monitor = AttemptMonitor(attempt, self.run_state, adopted=True)
        self.monitor.read_updates()
        return self.monitor

    def _newest(self) -> tuple[int, tuple[int, ...]]:
        last = self.writer.status.attempts[-1]
        return last.number, last.members

    def _attempt_dir(self, number: int) -> Path:
        return self.run_dir / f"attempt-{number}"

    # -- between two attempts -----------------------------------------------------------------------------------------

    def _pause(self) -> None:
        """Waits until the next attempt is due, and meanwhile handles stop requests, SIGTERM and the time limit."""
        assert self.next_at is not None
        now = self.clock.time()
        self.detached |= not self.availability.acquire()
        if self.detached:
            return
        lives = self.is_on_target
        if self.availability.is_holder is None and not self.terminated:
            self._wait(POLL_SECONDS)
        elif lives is False and self.is_to_stop():
            self.end_run(Outcome(Phase.STOPPED, reason="stop"))
        elif lives is False and self._is_late:
            self.end_run(timed_out(self.plan.policy))
        elif self.terminated and (not lives or self.backend.outlives_supervisor):
            self._detach()  # the next supervisor continues the run
        elif lives is None and (self.is_to_stop() or self._is_late):
            if self.writer.status.phase is not Phase.STOPPING:
                self.record.note(PhaseEntered(Phase.STOPPING))
            self.next_at = None
            self.adopt()  # the adopted attempt ends once the target reports no running nodes
        elif now < self.next_at:
            self._wait(min(POLL_SECONDS, self.next_at - now))
        elif not self.availability.is_holder:
            self._wait(POLL_SECONDS)
        elif lives:
            self.next_at = None
            self.adopt()
        elif not (self._admit() and self._stage()):
            self._wait(POLL_SECONDS)
        elif self.is_begun:
            self._start(*self._newest())  # the attempt was recorded but not started on the target
        else:
            self.run_state.liveness.rejoin(between=True)
            if self.run_state.membership.is_enough:
                self._begin_attempt()
            else:
                self._wait(POLL_SECONDS)

    def _admit(self) -> bool:
        """Whether the next attempt may start. Ends the run if it never will be admitted."""
        try:
            return self.backend.admit(self.record, self.clock)
        except NotAdmitted as error:
            self.end_run(Outcome(Phase.STOPPED, cause=RootCause(error.message), reason="not-admitted"))
        return False

    def _stage(self) -> bool:
        """Stages the data of the run. Returns whether it is complete. Ends the run if the data cannot be staged."""
        try:
            if self.backend.stage(self.record, self.clock):
                return True
            self.availability.note_available()
        except TargetUnavailable as error:
            self.next_at = self.availability.retry_at(error)
        except (OSError, EngineError) as error:
            if (again_at := self.availability.move_again_at("staged", error)) is not None:
                self.next_at = again_at
                return False
            cause = RootCause(f"the data could not be staged: {error_line(error)}")
            self.end_run(Outcome(Phase.FAILED, exit_code=127, cause=cause, reason="failure"))
        return False

    def _detach(self) -> None:
        """Detaches from the run, which is left unchanged for the next supervisor."""
        if self.backend.outlives_supervisor:
            why = "no supervisor is attached: it was ended by SIGTERM, and the workers continue without it"
            self.record.condition("SupervisorDetached", why)
        self.detached = True

    def _begin_attempt(self) -> None:
        number = len(self.writer.status.attempts) + 1
        members, procs = self.run_state.membership.members, self.plan.procs_per_node
        self.record.end_replay()
        self.run_state.progress.begin()
        self.run_state.liveness.begin()
        ranks = tuple(tuple(of_node) for of_node in ranks_by_node(len(members), procs))
        reason = self.record.history.why_begun(self.writer.status)
        requested_at = self.backend.requested_at(number)
        at = None if requested_at is None else max(requested_at, self.writer.status.times.phase_since)
        self.record.note(AttemptStarted(number, len(members) * procs, ranks, tuple(members), reason), at=at)
        folder = self._attempt_dir(number)
        if folder.exists() and self.backend.is_started(folder):
            # A previous supervisor started this attempt, but could not record it on a full disk.
            self.next_at = None
            self.adopt()
        else:
            self._start(number, members)

    def _start(self, number: int, members: Sequence[int]) -> None:
        attempt: Attempt | None = None
        self.next_at = None
        try:
            attempt = self.backend.start(self.record, self._attempt_dir(number), number, members, self.clock)
            self.monitor = AttemptMonitor(attempt, self.run_state)
            for warned in attempt.warnings:
                self.record.note(warned)
            self.availability.note_available()
        except TargetUnavailable as error:
            self.next_at = self.availability.retry_at(error)
        except HeldElsewhere:
            self.detached = True
        except (OSError, EngineError) as error:
            if attempt is not None:
                attempt.kill()
            self.monitor = None
            cause = RootCause(f"could not start: {error_line(error)}")
            self.end_run(Outcome(Phase.FAILED, exit_code=127, cause=cause, reason="failure"))

    # -- one iteration ------------------------------------------------------------------------------------------------

    def _turn(self, monitor: AttemptMonitor) -> None:
        is_woken = (
            not monitor.adopted or self.backend.outlives_supervisor
        )  # in both cases, threads watch the nodes and wake this loop
        self._wait(monitor.shutdown.due_in(POLL_SECONDS if is_woken else ADOPTED_POLL_SECONDS))
        if self.backend.is_lost_to_another:
            self.detached = True
            return
        monitor.read_updates()
        if self.terminated and self.backend.outlives_supervisor:
            self._detach()
            return
        self._end_if_requested(monitor)
        monitor.turn(is_observed=self.backend.trouble() is None)
        self.backend.upload_at_checkpoint(self.record, self.clock)
        self._check_outputs(monitor)
        self.availability.note_trouble()

    def _wait(self, seconds: float) -> None:
        """Waits for a node event or a signal. Writes events that a full disk has delayed."""
        self.clock.wait(seconds)
        with contextlib.suppress(StoreFull):
            self.writer.catch_up()

    def _end_if_requested(self, monitor: AttemptMonitor) -> None:
        """Ends the attempt on a stop request, at the job's time limit, or when the machine shuts down."""
        if monitor.shutdown.reason != "stop" and self.is_to_stop():
            monitor.end("stop")
        request = read_stop_request(self.run_dir)
        if request is not None and request.now:
            monitor.shutdown.hurry()
        may_end = monitor.shutdown.reason in (None, "preemption") and monitor.attempt.training_nodes()
        # The time limit does not apply while nodes copy results.
        if may_end and self._is_late:
            monitor.end("timeout")
        if self.terminated and monitor.shutdown.reason is None:
            # cloud metadata services use this time format
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock.time()))
            self.record.note(PreemptionNotice("sigterm", "terminate", at))
            monitor.end("preemption")

    def _check_outputs(self, monitor: AttemptMonitor) -> None:
        """Ends the attempt if the outputs of the run cannot be uploaded, because its results would be lost."""
        if monitor.attempt.over or monitor.shutdown.reason not in (None, "preemption"):
            return
        try:
            self.backend.check_outputs(self.record, self.clock)
        except TransferRefused as error:
            self.record.note(RootCause(f"the outputs cannot be uploaded: {error_line(error)}"))
            monitor.end("upload")

    @property
    def _is_late(self) -> bool:
        """Whether the job's time limit is reached. Suspends count, and clock changes since the supervisor's start do
        not.
        """
        return is_late(self.writer.status, self.plan.policy, self._booted_at + self.clock.boottime())

    def is_to_stop(self) -> bool:
        """Whether a stop was requested; records the request."""
        request = read_stop_request(self.run_dir) or self.stop_request
        if request is not None and not self.writer.status.supervision.stop_requested:
            self.record.note(StopRequested(request.reason, request.now))
        return self.writer.status.supervision.stop_requested

    # -- the end ------------------------------------------------------------------------------------------------------

    def judge(self, monitor: AttemptMonitor) -> tuple[Outcome, float | None]:
        """Returns the outcome of an attempt whose nodes have all ended; see `AttemptMonitor.judge`."""
        return monitor.judge(crash.cause_of_loss(self.run_dir))

    def end_attempt(self, monitor: AttemptMonitor) -> None:
        """Records the end of an attempt whose nodes have all ended, and the end of the run if no restart follows."""
        monitor.attempt.close()
        if monitor.shutdown.reason is None:
            monitor.warn_if_alone()
        found, died_at = self.judge(monitor)
        self.monitor = None
        if found.phase is not None:
            self.end_run(found, died_at)
            return
        if found.cause is not None:
            self.record.note(found.cause)
        self.record.note(found.attempt_end(died_at))
        self.next_at = self.clock.time() + found.wait_seconds

    def end_run(self, end: Outcome, died_at: float | None = None) -> None:
        """Records the end of the run. If outputs must be uploaded or fetched first, records how the run will end."""
        self.next_at = None
        self.backend.prepare_end(self.record)
        if end.cause is not None:
            self.record.note(end.cause)
        if end.reason == "preemption" and self.writer.status.attempts[-1:] and end.phase is Phase.STOPPED:
            self.record.note(end.attempt_end())
        # Outputs are not uploaded if the store has already refused them.
        has_results = bool(self.writer.status.attempts) and end.phase is not Phase.LOST and end.reason != "upload"
        nodes = self.backend.nodes_with_outputs(self.record) if has_results else ()
        if has_results and (self.backend.uploads_outputs or nodes):
            self.ending = end.ending(died_at, nodes)
            self.record.note(self.ending)
        else:
            self._end(end.end(died_at))

    def _upload(self) -> None:
        """Continues uploading or fetching the outputs. The run then ends as its last attempt did, or with the error of
        the transfer.
        """
        request = read_stop_request(self.run_dir)
        self.detached |= not self.availability.acquire()
        if self.terminated or self.detached:
            self.detached = True
        elif request is not None and request.now:
            self.is_to_stop()
            what = "collection" if self._is_collecting else "upload"
            self.end_uploading(f"`stop --now` ended the {what}", Phase.STOPPED)
        elif not self.availability.is_holder or self.clock.time() < self._upload_at or not self._upload_once():
            self._wait(POLL_SECONDS)

    @property
    def _is_collecting(self) -> bool:
        """Whether the outputs are fetched from nodes rather than uploaded."""
        return self.ending is not None and bool(self.ending.nodes)

    def _upload_once(self) -> bool:
        """Whether uploading or fetching has finished, successfully or not."""
        assert self.ending is not None
        try:
            if self._is_collecting:
                is_uploaded = self.backend.collect(self.record, self.ending.nodes, self.clock)
            else:
                is_uploaded = self.backend.upload(self.record, self.clock)
            self.availability.note_available()
        except TargetUnavailable as error:
            retry_at = self.availability.retry_at(error)
            self._upload_at = 0.0 if self._is_collecting else retry_at  # the backend itself pauses while fetching
            return False
        except (OSError, EngineError) as error:
            if (again_at := self.availability.move_again_at("uploaded", error)) is not None:
                self._upload_at = again_at
                return False
            self.end_uploading(error_line(error))
            return True
        if is_uploaded:
            self.end_uploading()
        return is_uploaded

    def end_uploading(self, problem: str = "", phase: Phase = Phase.FAILED) -> None:
        """Ends the run. A `problem` is why outputs were not uploaded: a run that had succeeded then ends as `phase`.

        Outputs that cannot be fetched do not change how the run ends.
        """
        assert self.ending is not None
        if self._is_collecting:
            phase, words = self.ending.phase or phase, "fetched"
        else:
            words = "uploaded"
        ending, self.ending = self.ending, None
        end = RunEnded(ending.phase, ending.exit_code, ending.reason, ending.step)
        message = f"the outputs could not be {words}: {problem}"
        if problem and ending.phase is Phase.SUCCEEDED and phase is not Phase.SUCCEEDED:
            end = RunEnded(phase, ending.exit_code, "stop" if phase is Phase.STOPPED else "upload", ending.step)
        if end.reason == "upload":
            self.record.note(RootCause(message))
        elif problem:
            self.record.note(Warned(message))
        self.backend.prepare_end(self.record)
        self._end(end)

    def _end(self, end: RunEnded) -> None:
        """Records the end before cleaning up, because a target that does not respond must not delay the record."""
        self.record.note(end)
        self._write_all()
        self.backend.clean_up(self.record, is_patient=self.patience_seconds > 0)

    def _write_all(self) -> None:
        """Writes the end of the run. A full disk may delay the write, but the end must not be lost. Raises
        StoreFull.
        """
        patience = (
            STOP_PATIENCE_SECONDS if self.writer.status.supervision.stop_requested else FULL_DISK_PATIENCE_SECONDS
        )
        give_up = self.clock.monotonic() + min(patience, self.patience_seconds)
        while True:
            try:
                self.writer.catch_up()
                return
            except StoreFull:
                if self.clock.monotonic() > give_up:
                    raise
                self.clock.wait(1.0)
