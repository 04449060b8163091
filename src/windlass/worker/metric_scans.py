"""Reads the files with metrics of an attempt in a thread, so that a slow file system does not block the node."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.worker.metric_files import FilePoint, MetricFiles

INTERVAL_SECONDS = 5.0
CPU_SHARE = 0.01
"""Maximum share of a core that the scans take; the pause after a long scan is longer."""
SCAN_SECONDS = 1.0
END_SECONDS = 3.0
"""Maximum seconds for which the last scans delay the end of an attempt."""
MAX_NOTES = 5
"""Maximum number of notes of one attempt."""


class MetricScans:
    """Scans for new values in the files of one attempt. No thread exists between two scans."""

    def __init__(
        self,
        env: Mapping[str, str],
        code: str,
        skipped: Iterable[str],
        selector: selectors.BaseSelector,
        take: Callable[[list[FilePoint]], None],
        note: Callable[[str], None],
    ) -> None:
        """`env` is the environment of the ranks, `code` their working folder, and `skipped` folders in it that are
        not searched. `take` and `note` are called in the thread of the node, by `selector` and by `finish`.
        """
        self._env = env
        self._code = code
        self._skipped = skipped
        self._since = time.time()
        self._selector = selector
        self._take = take
        self._note = note
        self._files: MetricFiles | None = None
        """None before the first scan, which only marks the values of earlier runs and attempts as read."""
        self._thread: threading.Thread | None = None
        self._points: list[FilePoint] = []
        self._num_notes = 0
        self._cpu_seconds = 0.0
        """CPU time of the last scan."""
        self._due_at = 0.0
        """Monotonic time of the next scan."""
        self._is_finished = False
        self._read, self._write = os.pipe()
        selector.register(self._read, selectors.EVENT_READ, self._collect)

    def due(self) -> float:
        """Returns the seconds until the next scan is due; infinity during a scan, and after the last one."""
        return float("inf") if self._thread is not None or self._is_finished else self._due_at - time.monotonic()

    def begin(self) -> None:
        """Begins a scan."""
        self._start(SCAN_SECONDS)

    def finish(self) -> None:
        """Reads the values that the ranks wrote before their end, and closes the pipe. Reads nothing if no scan has
        begun yet. Further calls do nothing: ranks of one node may end one after another.

        The thread of a scan that hangs is abandoned.
        """
        if self._is_finished:
            return
        self._is_finished = True
        give_up = time.monotonic() + END_SECONDS
        for is_begun in (True, False, False):  # two last scans: a file that looks damaged may be incomplete
            if not is_begun and self._files is not None:
                self._start(max(0.0, give_up - time.monotonic()) / 2)
            if self._thread is not None:
                self._thread.join(max(0.0, give_up - time.monotonic()))
                if self._thread.is_alive():
                    self._note("metrics that the script wrote last to files are not read: reading takes too long")
                    return
                self._collect()
        if self._files is not None and self._files.is_behind:
            self._note(
                "metrics that the script wrote last to files are not read: it wrote values faster than they are read"
            )
        self._selector.unregister(self._read)
        os.close(self._read)
        os.close(self._write)

    def _start(self, seconds: float) -> None:
        self._thread = threading.Thread(target=self._scan, args=(seconds,), daemon=True)
        self._thread.start()

    def _scan(self, seconds: float) -> None:
        """Runs in the thread."""
        begun = time.thread_time()
        try:
            # imported in the thread, so that the import does not delay the start of ranks
            from windlass.worker.metric_files import MetricFiles, folders_of

            if self._files is None:
                self._files = MetricFiles(*folders_of(self._env, self._code, self._skipped), self._since)
                self._files.skip_existing(seconds)
            else:
                self._points = self._files.scan(seconds)
        finally:
            self._cpu_seconds = time.thread_time() - begun
            os.write(self._write, b".")

    def _collect(self) -> None:
        """Passes the points and notes of a finished scan to `take` and `note`."""
        os.read(self._read, 1)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        points, self._points = self._points, []
        self._due_at = time.monotonic() + max(INTERVAL_SECONDS, self._cpu_seconds / CPU_SHARE)
        if points:
            self._take(points)
        if self._files is not None:
            for note in self._files.notes[self._num_notes : MAX_NOTES]:
                self._note(note)
            self._num_notes = len(self._files.notes)
