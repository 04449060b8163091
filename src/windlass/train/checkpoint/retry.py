"""Repeats reads that fail in the file system, with growing pauses, within a time limit.

Network file systems fail reads temporarily (ESTALE, EIO, EACCES), and a process may run out of file descriptors
(EMFILE): neither means that data is damaged. Standard library only, Python 3.9.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from windlass.stores.errors import StoreError
from windlass.train.checkpoint.faults import described

VARIABLE = "WINDLASS_CHECKPOINT_RETRY_SECONDS"
SECONDS = 60.0
"""Default time limit: longer than a remount or failover of an NFS server, shorter than hang detection and a pod's grace
period."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

T = TypeVar("T")


def _log(text: str) -> None:
    print(f"windlass: {text}", file=sys.stderr, flush=True)


class Retry:
    """Time limit of one restore for repeating reads after file system errors, shared by all reads."""

    def __init__(self, seconds: float = SECONDS, *, gives_up: Callable[[], bool] = lambda: False) -> None:
        """`gives_up` is called before each pause: a process that received SIGTERM does not wait for a disk."""
        self._left = seconds
        self._gives_up = gives_up

    def call(self, read: Callable[[], T], path: str) -> T:
        """Returns the result of `read()`. Raises its last OSError once the time is used up.

        Missing files, a file in place of a folder, and refusals of a store are raised at once. `path` is used in log
        lines if the error has no path.
        """
        end: float | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return read()
            except (FileNotFoundError, FileExistsError, NotADirectoryError):
                raise
            except OSError as error:
                if isinstance(error, StoreError) and error.is_final:
                    raise
                now = time.monotonic()
                if end is None:
                    end = now + self._left
                    if self._left > 0:
                        _log(f"{described(error, path)}; trying again for up to {self._left:.0f} s")
                if now >= end or self._gives_up():
                    raise
            finally:
                if end is not None:
                    self._left = max(0.0, end - time.monotonic())
            time.sleep(min(pause, self._left))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def seconds_of(environ: Mapping[str, str]) -> float:
    """Returns `$WINDLASS_CHECKPOINT_RETRY_SECONDS`, else 60. Raises ValueError for an invalid number."""
    text = environ.get(VARIABLE, "")
    if not text:
        return SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{VARIABLE}={text!r}: takes a number of seconds, such as 60; 0 means no retries")
    return seconds
