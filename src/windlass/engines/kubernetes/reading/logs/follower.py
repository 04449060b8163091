"""Follows the log of one node's pod to its end, across broken connections, and writes it with a `LogTail`."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from windlass.compat import override
from windlass.engines.kubernetes.access.background import Backoff
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Silent
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_status import container_state, has_ended, is_restarted
from windlass.engines.kubernetes.objects.pods import Pod
from windlass.errors import EngineError
from windlass.supervise.log_tail import LogTail

LOOK_SECONDS: Final = 1.0
"""Seconds between two checks of a pod that has not started, if no watch event arrives earlier."""
KEPT_SECONDS: Final = 60.0
"""Seconds for which requests for the log of an ended pod may fail before the rest of the log counts as lost."""
MAX_FOLLOWED: Final = 256
"""Maximum number of logs that are followed at once, each over a separate connection; all others are polled in turn."""
RESERVED_FILES: Final = 64
"""Number of open files reserved for purposes other than logs."""
MAX_POLLING: Final = 8
POLLS_A_SECOND: Final = 20.0
"""Maximum number of polls per second, for all nodes together."""


class Pods(Protocol):
    """Pods of an attempt as last observed; `PodWatch` implements this."""

    def pod(self, place: int) -> Pod | None:
        """Returns the pod at a place, as last observed; None if no pod was observed."""

    def is_gone(self, place: int) -> bool:
        """Whether the pod at a place was deleted, or will never be created."""


class Connections:
    """Limits the number of an attempt's logs that are followed at once, because of the limit on open files."""

    def __init__(self, num_nodes: int, max_followed: int | None = None) -> None:
        """`max_followed` defaults to the number that the limit on open files allows."""
        most = max_followed_now() if max_followed is None else max_followed
        self._following = threading.Semaphore(most)
        self._polling = threading.Semaphore(MAX_POLLING)
        self.pause_seconds = max(LOOK_SECONDS, max(0, num_nodes - most) / POLLS_A_SECOND)
        """Seconds between two polls of a log that is not followed."""

    @contextmanager
    def one(self, *, follow: bool) -> Iterator[bool]:
        """Waits for a free connection; yields whether the log may be followed over it, or only polled."""
        if follow and self._following.acquire(blocking=False):
            try:
                yield True
            finally:
                self._following.release()
        else:
            with self._polling:
                yield False


def max_followed_now() -> int:
    """Returns the number of log connections that the limit on open files allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_FOLLOWED if soft == resource.RLIM_INFINITY else (soft - RESERVED_FILES) // 2
    return max(1, min(MAX_FOLLOWED, limit))


def raise_file_limit() -> None:
    """Raises this process's limit on open files to the hard limit, since watches, signals and the log of each pod need
    connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class PodLogReader:
    """Reads the log of one node's pod into a `LogTail`, and decides when the rest of the log is lost."""

    def __init__(
        self,
        what: str,
        client: Client,
        pods: Pods,
        place: int,
        make_intake: Callable[[], LogTail],
        wake: Callable[[], None],
    ) -> None:
        """`what` names the log in the record; `wake` is called after new data was written."""
        self._what = what
        self._client = client
        self._pods = pods
        self._place = place
        self._make_intake = make_intake
        self._wake = wake
        self.closed = threading.Event()
        self.backoff = Backoff()
        self._failing_since: float | None = None
        """Time of the first failed request for the log of the ended pod, in monotonic seconds; None without a
        failure."""
        self.intake: LogTail | None = None
        """Writer of the log; None before the first read."""

    @property
    def has_ended(self) -> bool:
        """Whether the pod will write nothing more to the log."""
        pod = self._pods.pod(self._place)
        return self._pods.is_gone(self._place) or (pod is not None and has_ended(pod))

    def read(self, pod: Pod, *, follow: bool) -> None:
        """Writes log lines to the files until the connection ends. Raises EngineError, OSError."""
        intake = self.intake = self.intake or self._make_intake()
        since = intake.begin()
        lines = self._client.logs(
            pod["metadata"]["name"],
            container=layout.container_of(pod),
            follow=follow,
            since=since,
            previous=is_restarted(pod),
        )
        self._client.health.connected(self._what)
        try:
            for line in lines:
                if intake.put(line):
                    self._progressed()
                if self.closed.is_set():
                    break
        except EngineError as error:
            # Lines before an error are written; otherwise, reading over an unstable connection would make no progress.
            self._flush(intake)
            if not follow or not isinstance(error, Silent):
                raise
        self._flush(intake)
        self._failing_since = None

    def _flush(self, intake: LogTail) -> None:
        if intake.flush():
            self._progressed()

    def _progressed(self) -> None:
        """Resets the backoff after new data was written, so that the next failure is retried at once."""
        self._client.health.well(self._what)
        self.backoff.reset()
        self._failing_since = None
        self._wake()

    def is_final(self, error: Exception) -> bool:
        """Whether an error of `read` means that the rest of the log is lost. All other errors are recorded."""
        health = self._client.health
        if isinstance(error, Refused):
            if self._is_lost(error):
                return True
            health.failed(self._what, error)
        # Reading is retried without limit while the server does not respond or the login cannot be renewed.
        elif isinstance(error, EngineError):
            health.failed(self._what, error)
        elif isinstance(error, OSError):  # on a full disk, reading continues later, from the cursor
            health.failed(self._what, EngineError(f"it cannot be written: {error.strerror or error}"))
        else:
            health.crashed(self._what, error)
            return self._is_late()
        return False

    def _is_lost(self, error: Refused) -> bool:
        """Whether the rest of the log is lost: the pod was deleted, or has ended and its log was removed."""
        pod = self._pods.pod(self._place)
        if pod is None:
            return self._pods.is_gone(self._place)
        if self._pods.is_gone(self._place) and error.is_absent(pod["metadata"]["name"], "Pod"):
            return True
        return self._is_late()

    def _is_late(self) -> bool:
        """Whether requests for the log of an ended pod have failed for KEPT_SECONDS; if so, records the loss."""
        now = time.monotonic()
        if not self.has_ended:
            self._failing_since = None
            return False
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since < KEPT_SECONDS:
            return False
        self._client.health.lost(self._what)
        return True


class Follower(PodLogReader):
    """Reads the log of one node in a separate thread, until `is_done`."""

    @override
    def __init__(
        self,
        what: str,
        client: Client,
        pods: Pods,
        place: int,
        make_intake: Callable[[], LogTail],
        connections: Connections,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(what, client, pods, place, make_intake, wake)
        self._connections = connections
        self._looked = threading.Event()
        self._last_state: object = None
        self.is_done = False
        """Whether the files have all output of the pod that the cluster still has."""
        threading.Thread(target=self._run, name=what, daemon=True).start()

    def close(self) -> None:
        """Stops reading."""
        self.closed.set()
        self._looked.set()
        self._client.health.well(self._what)  # at the end of the attempt, errors of reading the log no longer matter

    @property
    def is_finished(self) -> bool:
        """Whether, according to the log, the attempt is over and the pod is kept alive for the next attempt."""
        return self.intake is not None and self.intake.is_finished

    def catch_up(self) -> None:
        """Writes buffered lines, and ends the reader if the log shows the end of the attempt."""
        if self.intake is None or self.is_done:
            return
        # The thread handles a full disk and a closed file.
        with contextlib.suppress(OSError):
            self.intake.flush()
        if self.is_finished:
            self.is_done = True
            self.close()

    def look(self) -> None:
        """Wakes the thread if the node's pod has changed; called after each change of the pods."""
        pod = self._pods.pod(self._place)
        state = None if pod is None else (pod["metadata"].get("uid"), container_state(pod)[0], has_ended(pod))
        if (seen := (state, self._pods.is_gone(self._place))) != self._last_state:
            self._last_state = seen
            self._looked.set()

    # -- reading thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.closed.is_set():
            try:
                if self._turn():
                    break
            except Exception as error:
                if self.is_final(error):
                    break
                self.closed.wait(self.backoff.next())
        self._client.health.well(self._what)
        self.is_done = True
        self._wake()

    def _turn(self) -> bool:
        """Reads the lines that are available; returns whether the log is complete."""
        pod, gone = self._pods.pod(self._place), self._pods.is_gone(self._place)
        if pod is None or (container_state(pod)[0] == "waiting" and not has_ended(pod)):
            if not gone:
                self._wait(LOOK_SECONDS)
            return gone
        ended = self.has_ended
        with self._connections.one(follow=not ended) as is_followed:
            self.read(pod, follow=is_followed)
        if ended or self.closed.is_set():
            return True
        if not is_followed:
            self._client.health.well(self._what)
            self._wait(self._connections.pause_seconds)
        else:
            self._wait(self.backoff.next())  # the log ends shortly before the pod's status changes
        return False

    def _wait(self, seconds: float) -> None:
        self._looked.wait(seconds)
        self._looked.clear()
