"""Gives data loader workers their own process group, so that they keep working until their rank has saved.

On SIGTERM, torchrun signals the whole process group of each rank. The workers would die at once, torch would raise that
in the rank before the ranks have agreed on a step, and nothing would be saved.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


class InOwnGroup:
    """A `worker_init_fn` that wraps the script's own. Pickled if workers are spawned."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker process."""
        with contextlib.suppress(OSError):  # the worker is a session leader already
            os.setpgid(0, 0)
        if sys.platform == "linux":  # a SIGKILL to the rank's group must end the worker too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if self._then is not None:
            self._then(worker_id)


def set_apart(loader: object) -> None:
    """Makes workers that a torch data loader starts from now on leave the process group of this rank.

    Only in the main thread: any other thread may end before the process does, and its workers would then be killed.
    """
    given = getattr(loader, "worker_init_fn", None)
    has_workers = getattr(loader, "num_workers", 0) and hasattr(loader, "worker_init_fn")
    if has_workers and not isinstance(given, InOwnGroup) and threading.current_thread() is threading.main_thread():
        loader.worker_init_fn = InOwnGroup(given)  # type: ignore[attr-defined]
