"""Brings the log of one node's pod into the files of an attempt, to its end, however often connections break."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.background import Backoff
from windlass.engines.kubernetes.client import Client, Refused, Silent
from windlass.engines.kubernetes.intake import Intake
from windlass.engines.kubernetes.pods import Pod, has_ended
from windlass.engines.kubernetes.seeing import container_state, is_restarted
from windlass.errors import EngineError

LOOK_SECONDS: Final = 1.0
"""How long a pod that has not begun may go unnoticed, should nothing report that it has."""
KEPT_SECONDS: Final = 60.0
"""How long the log of a pod that has ended is asked for in vain until the rest of it counts as lost."""
MAX_FOLLOWED: Final = 256
"""Logs that are followed at once, each by a connection of its own; of all others the news is asked for in turn."""
RESERVED_FILES: Final = 64
"""Of the files that this process may open: those that are not connections of logs."""
MAX_ASKING: Final = 8
ASKED_A_SECOND: Final = 20.0
"""Logs that are asked for in turn, by all nodes together."""


class Pods(Protocol):
    """What is known of the pods of an attempt; see `PodWatch`."""

    def pod(self, place: int) -> Pod | None:
        """The pod at a place, as it was last seen; None where there was none yet."""

    def is_gone(self, place: int) -> bool:
        """Whether the pod at a place was deleted, or will never be there."""


class Connections:
    """How many logs of an attempt may be followed at once, so that no limit on open files is reached."""

    def __init__(self, num_nodes: int, max_followed: int | None = None) -> None:
        """`max_followed` is found out where it is not given."""
        most = max_followed_now() if max_followed is None else max_followed
        self._following = threading.Semaphore(most)
        self._asking = threading.Semaphore(MAX_ASKING)
        self.pause_seconds = max(LOOK_SECONDS, max(0, num_nodes - most) / ASKED_A_SECOND)
        """Between two looks at a log that is not followed."""

    @contextmanager
    def one(self, *, follow: bool) -> Iterator[bool]:
        """Room for one connection; gives whether the log may be followed by it."""
        if follow and self._following.acquire(blocking=False):
            try:
                yield True
            finally:
                self._following.release()
        else:
            with self._asking:
                yield False


def max_followed_now() -> int:
    """How many connections the limit on open files leaves for logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_FOLLOWED if soft == resource.RLIM_INFINITY else (soft - RESERVED_FILES) // 2
    return max(1, min(MAX_FOLLOWED, limit))


def raise_file_limit() -> None:
    """Let this process open as many files as its user may: a watch, signals and a log of each pod are connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Follower:
    """Of one node. Runs in a thread of its own until `is_done`."""

    def __init__(
        self, what: str, client: Client, pods: Pods, place: int, make_intake: Callable[[], Intake],
        connections: Connections, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        """`what` is what the log is called in the record; `wake` is called at each news."""
        self._what = what
        self._client = client
        self._pods = pods
        self._place = place
        self._make_intake = make_intake
        self._connections = connections
        self._wake = wake
        self._closed = threading.Event()
        self._looked = threading.Event()
        self._backoff = Backoff()
        self._last_state: object = None
        self._failing_since: float | None = None
        """Monotonic seconds; since when the log of a pod that has ended is asked for in vain."""
        self.intake: Intake | None = None
        self.is_done = False
        """Whether all that the pod has written is in our files, as far as anything keeps it."""
        threading.Thread(target=self._run, name=what, daemon=True).start()

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
        self._looked.set()

    def finish(self) -> None:
        """Nothing more will come: the pod stays, for another attempt."""
        self.is_done = True
        self.close()

    def look(self) -> None:
        """Something was seen of the pods; where it is of this one, what waits for it goes on at once."""
        pod = self._pods.pod(self._place)
        state = None if pod is None else (pod["metadata"].get("uid"), container_state(pod)[0], has_ended(pod))
        if (seen := (state, self._pods.is_gone(self._place))) != self._last_state:
            self._last_state = seen
            self._looked.set()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                if self._turn():
                    break
            except Refused as error:
                if self._is_lost(error):
                    break
                self._failed(error)
            except EngineError as error:  # no answer, or a login that cannot be renewed now: as long as it takes
                self._failed(error)
            except OSError as error:  # a full disk: the cursor knows where to go on
                self._failed(EngineError(f"it cannot be written: {error.strerror or error}"))
            except Exception as error:
                self._client.health.crashed(self._what, error)
                if self._is_late():
                    break
                self._pause()
        self._client.health.well(self._what)
        self.is_done = True
        self._wake()

    def _turn(self) -> bool:
        """Read what there is; gives whether nothing more will come."""
        pod, gone = self._pods.pod(self._place), self._pods.is_gone(self._place)
        if pod is None or (container_state(pod)[0] == "waiting" and not has_ended(pod)):
            if not gone:
                self._wait(LOOK_SECONDS)
            return gone
        ended = gone or has_ended(pod)
        self.intake = self.intake or self._make_intake()
        with self._connections.one(follow=not ended) as is_followed:
            is_new = self._read(self.intake, pod, follow=is_followed)
        if ended or self._closed.is_set():
            return True
        if not is_followed:
            self._client.health.well(self._what)
            self._wait(self._connections.pause_seconds)
        elif is_new:
            self._backoff.reset()
            self._wait(self._backoff.next())  # the log ends a moment before the pod's status says so
        else:
            self._wait(self._backoff.next())
        return False

    def _read(self, intake: Intake, pod: Pod, *, follow: bool) -> bool:
        """Take lines until the connection ends; gives whether any was new."""
        is_new = False
        since = intake.begin()
        lines = self._client.logs(
            pod["metadata"]["name"], container=layout.container_of(pod), follow=follow, since=since,
            previous=is_restarted(pod),
        )  # fmt: skip
        self._client.health.connected(self._what)
        try:
            for line in lines:
                if intake.put(line):
                    is_new = True
                    self._progressed()
                if self._closed.is_set():
                    break
        except EngineError as error:
            self._flush(intake)  # what came before the cut counts: else a connection that never holds gives nothing
            if not follow or not isinstance(error, Silent):
                raise
        is_new = self._flush(intake) or is_new
        self._failing_since = None
        return is_new

    def _flush(self, intake: Intake) -> bool:
        is_new = intake.flush()
        if is_new:
            self._progressed()
        return is_new

    def _progressed(self) -> None:
        """Something new has come: all is well, and what fails next may be tried again at once."""
        self._client.health.well(self._what)
        self._backoff.reset()
        self._failing_since = None
        self._wake()

    # -- what fails ---------------------------------------------------------------------------------------------------

    def _failed(self, error: EngineError) -> None:
        self._client.health.failed(self._what, error)
        self._pause()

    def _pause(self) -> None:
        self._closed.wait(self._backoff.next())

    def _wait(self, seconds: float) -> None:
        """Wait until the pod has changed, and at most so long."""
        self._looked.wait(seconds)
        self._looked.clear()

    def _is_lost(self, error: Refused) -> bool:
        """Whether what is left of the log is lost: its pod was deleted, or has ended, and nothing keeps its log."""
        pod = self._pods.pod(self._place)
        if pod is None:
            return self._pods.is_gone(self._place)
        if self._pods.is_gone(self._place) and error.is_absent(pod["metadata"]["name"], "Pod"):
            return True
        return self._is_late()

    def _is_late(self) -> bool:
        """Whether the log of a pod that has ended has been asked for in vain for long; the record then knows of it."""
        pod, now = self._pods.pod(self._place), time.monotonic()
        if pod is not None and not has_ended(pod) and not self._pods.is_gone(self._place):
            self._failing_since = None
            return False
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since < KEPT_SECONDS:
            return False
        self._client.health.lost(self._what)
        return True
