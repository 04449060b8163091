"""One attempt as a training job: its hosts are nodes, whose events are read from their log streams."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.engines.sagemaker.description import (
    INTERRUPTED,
    has_containers,
    num_starts,
    read_description,
    seconds_of,
    write_description,
)
from windlass.engines.sagemaker.host_log import HostLog, numbered, place_of
from windlass.engines.sagemaker.late_logs import mark_late
from windlass.engines.sagemaker.layout import some_of
from windlass.engines.sagemaker.service import (
    COMPLETED,
    DELETED,
    ENDED,
    FAILED,
    IN_PROGRESS,
    STOPPED,
    VALIDATION,
    Absent,
    Description,
    NotLoggedIn,
    Refused,
    Service,
    Unavailable,
)
from windlass.runs.node_events import EventDeduplicator, RankSeen, StageReached
from windlass.runs.stop_request import read_stop_request
from windlass.supervise.backend import Attempt, Intent, Node, TargetUnavailable
from windlass.supervise.log_tail import last_line_at
from windlass.worker.protocol import (
    OUTPUTS_INCOMPLETE,
    CheckpointReported,
    MetricsReported,
    NodeEvent,
    NodeSpec,
    NodeWarning,
    PreemptionNotice,
    RankChanged,
    RankFailing,
    RankFailure,
    WorkerFailed,
)

LOG_SECONDS: Final = 30.0
"""Time limit in seconds for the last log lines of an ended job to arrive."""
KILLED_LOG_SECONDS: Final = 5.0
"""Shorter time limit in seconds if only a killed host has not reported its end: a killed host never reports it."""
KILLED: Final = "exit code: 137"
"""Suffix of the failure reason of a job whose container was killed."""
MAX_MESSAGE: Final = 1000
"""Maximum characters of a worker's error message in a warning."""
DELETED_WORDS: Final = "the training job was deleted before its end was recorded"
TIME_IS_OVER: Final = "MaxRuntimeExceeded"
STAGES: Final = {
    "Pending": "queued",
    "Starting": "provisioning",
    "LaunchingMLInstances": "provisioning",
    "PreparingTrainingStack": "provisioning",
    "Training": "starting",
    "Downloading": "pulling",
    "DownloadingTrainingImage": "pulling",
}
"""Phase of a run by the secondary status of its training job."""


class HostNode(Node):
    """One host of the training job."""

    def __init__(self, spec: NodeSpec, place: int, attempt: JobAttempt) -> None:
        super().__init__(spec.node, tuple(rank.rank for rank in spec.ranks), attempt.folder)
        self.place = place
        self.log = HostLog(attempt.service, self.folder, self.number, self.ranks, attempt.number, attempt.closed)
        self._attempt = attempt
        self._reported_failures: Sequence[RankFailure] | None = None
        """Failures of the host's ranks according to its log; accepted once the job has ended."""
        self._starts_read = 0
        """Number of restarts of the host whose events were read. SageMaker restarts hosts on other spot instances."""
        self.is_failing = False
        """Whether a rank of the host has failed according to its log."""
        self._has_sigterm = False
        """Whether SageMaker has sent SIGTERM: for a spot interruption, the failure of another host, or a stop."""
        self._withheld: list[NodeEvent] = []
        """Events since the SIGTERM, withheld until the job has ended and discarded if it is started again. Checkpoint
        events are not withheld: the next start continues from the checkpoint. Nor are metrics."""

    @override
    def updates(self) -> Iterator[NodeEvent]:
        attempt = self._attempt
        all_read = attempt.all_read
        if has_containers(attempt.description) and not attempt.is_seen_alive:
            attempt.is_seen_alive = True
            yield RankSeen(time.time())
        for event in self._events():
            if isinstance(event, PreemptionNotice) and event.source == "sigterm":
                self._has_sigterm = True  # SageMaker reports the reason of the SIGTERM, which causes later failures
            elif isinstance(event, WorkerFailed):
                if event.message and not self._has_sigterm:  # warns now, because the job may take minutes to end
                    message = f"the worker of host {self.place + 1} has failed: {event.message[:MAX_MESSAGE]}"
                    yield NodeWarning(event.at, message)
            elif isinstance(event, MetricsReported):
                yield numbered(event, self._starts_read)
            elif self._has_sigterm and not (attempt.was_stopped_by_user or isinstance(event, CheckpointReported)):
                self._withheld.append(event)
            else:
                yield from self._noted(event)
        if self.place == 0:
            yield from attempt.reports()
        if all_read and not self._was_ended_from_outside():  # a node whose job was ended from outside counts as lost
            for event in self._withheld:
                yield from self._noted(event)
            self._withheld.clear()
            if not self.ended:
                yield from self._accept_end()

    def _noted(self, event: NodeEvent) -> Iterator[NodeEvent]:
        if isinstance(event, RankFailing) or (isinstance(event, RankChanged) and event.exit_code):
            self.is_failing = True
        yield event

    def _events(self) -> Iterator[NodeEvent]:
        """Yields the events of the host, start after start.

        Event keys are unique within one start only. A new start discards the state that the previous start reported
        last.
        """
        while True:
            yield from super().updates()
            if self._offset not in self._starts():
                return
            self._starts_read += 1
            self._deduplicator, self._partial, self._reported_failures, self.host = EventDeduplicator(), b"", None, None
            self._has_sigterm = self.is_failing = False
            self._withheld.clear()

    def _num_readable(self) -> int:
        """Returns the bytes of events up to the next start of the host; −1 if no start follows."""
        return next((at - self._offset for at in self._starts()), -1)

    def _starts(self) -> list[int]:
        """Returns the offsets in the events file at which later, unread starts begin."""
        return self.log.starts[self._starts_read :]

    def take_end(self, failures: Sequence[RankFailure]) -> None:
        """Stores the reported failures without accepting them yet.

        Any process of the host may have written the report; it is accepted only if the job ends accordingly.
        """
        self._reported_failures = failures

    @property
    def has_succeeded(self) -> bool:
        """Whether all ranks of the host have succeeded, according to its log."""
        return self._reported_failures is not None and not self._reported_failures

    def _accept_end(self) -> Iterator[NodeEvent]:
        status = self._attempt.status
        # Whether the log of a host explains the failure of the job.
        is_explained = status != FAILED or any(node._reported_failures for node in self._attempt.nodes)
        if self._reported_failures is not None and is_explained:
            self.ended, self.failures = True, list(self._reported_failures)
        elif status == COMPLETED:
            self.ended, self.failures = True, []
            message = f"host {self.place + 1} counts as succeeded like its job, although its log has no end"
            yield NodeWarning(time.time(), message)
        elif status == STOPPED and self._attempt.was_stopped_by_user:
            words = self.last_words()
            self.ended = True
            self.failures = [
                RankFailure(rank, -signal.SIGTERM, time.time(), words, ended_by_us=True) for rank in self.ranks
            ]

    def _was_ended_from_outside(self) -> bool:
        """Whether SageMaker stopped the job without a stop request of the run.

        Ranks that then save and exit with 0 have not finished. If a time limit of the job ended it, ranks that failed
        keep their failures.
        """
        attempt = self._attempt
        if attempt.status != STOPPED or not self._has_sigterm or attempt.was_stopped_by_user:
            return False
        return not self._reported_failures or attempt.description.get("SecondaryStatus") == STOPPED

    @property
    def exit_code(self) -> int:
        """SIGTERM for a stopped job, SIGKILL otherwise, as a negative exit code."""
        return -signal.SIGTERM if self._attempt.status == STOPPED else -signal.SIGKILL

    @override
    def lives(self) -> bool:
        return not self._attempt.all_read

    def last_words(self) -> str:
        """Returns the output of the host's worker process, and the reason why the job ended."""
        return "\n".join(text for text in (super().last_words(), self._attempt.why_ended) if text)

    def send(self, intent: Intent) -> None:
        """Stops the job. SageMaker cannot signal a single host.

        A job with a failed rank is not stopped: that host is about to exit with its exit code, and SageMaker then ends
        the other hosts. A stop in between would end the job as `Stopped`, without a reason.
        """
        is_failing = any(node.is_failing for node in self._attempt.nodes) and not self._attempt.was_stopped_by_user
        if (intent is Intent.STOP and not is_failing) or intent in (Intent.STOP_NOW, Intent.KILL):
            self._attempt.stop()


class JobAttempt(Attempt):
    """All hosts of one training job. A thread polls the service for the state and the logs of the job."""

    nodes: tuple[HostNode, ...]
    num_staged = 1
    """Number of nodes that report the phases of the job: only the first host does."""

    def __init__(
        self,
        service: Service,
        name: str,
        number: int,
        specs: Sequence[NodeSpec],
        folder: Path,
        wake: Callable[[], None],
        log_seconds: float = LOG_SECONDS,
    ) -> None:
        """`name` is the name of the training job; `log_seconds` limits the wait for the end of its logs after it has
        ended.
        """
        super().__init__(folder, ())
        self.log_seconds = log_seconds
        self.service = service
        self.name = name
        self.number = number
        self._wake = wake
        self.closed = threading.Event()
        self.nodes = tuple(HostNode(spec, place, self) for place, spec in enumerate(specs))
        self.description: Description = {}
        self.all_read = False
        """Whether the job has ended and all of its logs are written to the files."""
        self.is_seen_alive = False
        self.is_stopped_by_us = False
        self.trouble: TargetUnavailable | None = None
        """Why the service is unavailable now; None if it is available."""
        self._is_stop_requested = False
        self._ended_at: float | None = None
        """Monotonic time of the first description in which the job has ended."""
        self._unread: tuple[float, str] | None = None
        """Monotonic time since which the logs cannot be read, and why; None if they can."""
        self._absent_since: float | None = None
        """Monotonic time since which the service reports that the job does not exist."""
        self._warned: set[str] = set()
        """Messages of the warnings that were reported."""
        self._num_reported = 0
        """Number of the job's transitions that were reported."""
        self._poll_now = threading.Event()
        threading.Thread(target=self._run, name=f"training job {name}", daemon=True).start()

    @property
    def status(self) -> str:
        """`TrainingJobStatus`, such as `InProgress` or `Completed`; empty before the first response."""
        return str(self.description.get("TrainingJobStatus", ""))

    @property
    def _transitions(self) -> Sequence[Description]:
        return self.description.get("SecondaryStatusTransitions") or ()

    @property
    def why_ended(self) -> str:  # type: ignore[override]
        """Reason for the end of the job, from the service if it gives one; empty while the job runs."""
        if self.status not in ENDED:
            return ""
        reason = str(self.description.get("FailureReason") or "")
        if self.status == DELETED:
            return DELETED_WORDS if "TrainingJobName" in self.description else "the training job was not created"
        return reason or f"the training job has ended as {self.status}"

    @property
    def has_failed_after_ranks(self) -> bool:  # type: ignore[override]
        """Whether the job failed although all ranks succeeded: the upload of the model failed, or SageMaker had an
        internal error.
        """
        return self.status == FAILED and all(node.has_succeeded for node in self.nodes)

    @property
    def ended_by_target(self) -> str | None:  # type: ignore[override]
        """`timeout` for the job's own time limit, `preemption` for reclaimed spot instances; None otherwise."""
        second = self.description.get("SecondaryStatus")
        if second == TIME_IS_OVER:
            return "timeout"
        return "preemption" if second == INTERRUPTED else None

    @property
    def was_stopped_by_user(self) -> bool:
        """Whether a supervisor of the run stopped the job, or the user has requested a stop."""
        return self.is_stopped_by_us or read_stop_request(self.folder.parent) is not None

    def reports(self) -> Iterator[NodeEvent]:
        """Yields events for everything that the service has reported about the job since the last call."""
        for warning in self._warnings():
            if warning.message not in self._warned:
                self._warned.add(warning.message)
                yield warning
        for one in self._transitions[self._num_reported :]:
            self._num_reported += 1
            if (stage := STAGES.get(one["Status"])) is not None:
                yield StageReached(seconds_of(one["StartTime"]), stage)
            elif one["Status"] == INTERRUPTED:
                words = f" ({one['StatusMessage']})" if one.get("StatusMessage") else ""
                message = f"SageMaker reclaimed the spot instances{words} and restarts the job"
                yield NodeWarning(seconds_of(one["StartTime"]), message)

    def _warnings(self) -> Iterator[NodeWarning]:
        """Yields a warning for each problem of the job that its log does not show."""
        hosts = self.description.get("WindlassHosts") or {}
        if hosts.get("isolation") == "folders":
            yield NodeWarning(
                time.time(),
                f"hosts have no namespaces here ({hosts.get('why')}): SAGEMAKER_BASE_DIR names "
                "the folder used in place of /opt/ml, host names are addresses, and PID 1 is not the container's",
            )
        if skipped := self.description.get("WindlassSkipped"):
            message = f"files that the hosts have written were not uploaded: {some_of(skipped)}"
            yield NodeWarning(time.time(), message, code=OUTPUTS_INCOMPLETE)
        if self.all_read and self._unread is not None:
            message = f"the job has ended, and its last log lines cannot be read: {self._unread[1]}"
            yield NodeWarning(time.time(), message)

    def last_sign_of_life(self) -> float:
        """Returns the time of the newest log line in Unix seconds; 0 if there is none.

        File times are not used: after an adoption they show when earlier lines were read.
        """
        return max((last_line_at(path) for path in self.folder.glob("node-*.cursor")), default=0.0)

    def stop(self) -> None:
        """Makes the thread stop the job now, and again at each poll until it has stopped.

        The supervisor calls this method every time the thread wakes it, so only the first call may wake the thread.
        """
        if not self._is_stop_requested:
            self._is_stop_requested = True
            self._poll_now.set()

    @override
    def close(self) -> None:
        self.closed.set()
        self._poll_now.set()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.closed.is_set() and not self.all_read:
            try:
                self._poll()
                self.trouble = None
            except (Unavailable, Refused) as error:
                self.trouble = unavailable(error, "the job may still be running")
            except OSError as error:  # after a full disk, the logs are read again from the cursor
                words = f"the logs cannot be written: {error.strerror or error}"
                self.trouble = TargetUnavailable("NotObserved", words)
            except Exception as error:  # an internal error must not end this thread, because the run would never end
                self.trouble = TargetUnavailable("NotObserved", f"{type(error).__name__}: {error}")
                traceback.print_exc()
            self._wake()
            self._poll_now.wait(self.service.poll_seconds)
            self._poll_now.clear()
        self._wake()

    def _poll(self) -> None:
        problem = self._stop_job() if self._is_stop_requested and self.status in ("", IN_PROGRESS) else None
        description = self._describe()
        if description != self.description:
            write_description(self.folder, description)
        self.description = description
        is_over = self.status in ENDED
        if is_over and self._ended_at is None:
            self._ended_at = time.monotonic()
        try:
            is_new, self._unread = self._read_logs(), None
        except (Refused, Unavailable) as error:
            self._unread = self._unread or (time.monotonic(), error.message)
            if not (is_over and self._are_logs_given_up(self._unread[0])):
                raise
            is_new = False
        if is_over and not is_new and self._has_all_logs():
            self.all_read = True
        if problem is not None and self.status == IN_PROGRESS:
            raise problem

    def _stop_job(self) -> Refused | Unavailable | None:
        """Requests a stop of the job and returns the error that the service answered, if the job may still run.

        The request is repeated while the job runs: the service may carry it out without a response, and a proxy may
        answer in place of the service.
        """
        self.is_stopped_by_us = True
        try:
            self.service.stop(self.name)
        except (Refused, Unavailable) as error:
            is_over = isinstance(error, Refused) and error.code == VALIDATION  # the job has already ended
            return None if is_over else error
        return None

    def _describe(self) -> Description:
        """Returns the description of the job, with status `DELETED` if the job does not exist. Raises Unavailable."""
        try:
            found = self.service.describe(self.name)
        except Absent as error:
            if self.status in ENDED:
                return self.description
            now = time.monotonic()
            self._absent_since = now if self._absent_since is None else self._absent_since
            if now - self._absent_since < self.service.settle_seconds:
                raise Unavailable(error.message) from error
            known = self.description or read_description(self.folder)
            return {**known, "TrainingJobStatus": DELETED, "SecondaryStatus": DELETED}
        self._absent_since = None
        return found

    def _has_all_logs(self) -> bool:
        """Whether no more log lines are expected: each host's log has its end, or the time limit has passed."""
        assert self._ended_at is not None
        if "TrainingStartTime" not in self.description:  # no container has run
            return True
        starts = num_starts(self.description)
        num_without_end = sum(not node.log.has_end(starts) for node in self.nodes)
        if num_without_end == 0 or self.service.logs_are_prompt:
            return True
        is_of_killed = num_without_end == 1 and self.why_ended.endswith(KILLED)
        if time.monotonic() - self._ended_at <= (KILLED_LOG_SECONDS if is_of_killed else self.log_seconds):
            return False
        mark_late(self.folder)
        return True

    def _are_logs_given_up(self, unread_since: float) -> bool:
        """Whether the logs of the ended job have been unreadable for too long, for example without the permission.

        The service has reported the end of the job, and later commands read its last log lines.
        """
        assert self._ended_at is not None
        if time.monotonic() - max(self._ended_at, unread_since) <= self.log_seconds:
            return False
        mark_late(self.folder)
        return True

    def _read_logs(self) -> bool:
        """Writes new lines of the hosts' log streams to the files; returns whether there were any."""
        is_new = False
        streams: Sequence[str] = ()
        # Logs may be missing: the emulation keeps none of a deleted job.
        with contextlib.suppress(Refused if self.status == DELETED else Absent):
            streams = self.service.log_streams(self.name, is_over=self.status in ENDED)
        for stream in streams:
            if 0 <= (place := place_of(stream)) < len(self.nodes):
                is_new = self.nodes[place].log.read(stream) or is_new
        return is_new


def unavailable(error: Unavailable | Refused, more: str = "") -> TargetUnavailable:
    """Returns the condition of a run whose service is unavailable."""
    kind = "LoginFailed" if isinstance(error, NotLoggedIn) else "ServiceUnavailable"
    return TargetUnavailable(kind, "; ".join(part for part in (error.message, more) if part), error.hint)
