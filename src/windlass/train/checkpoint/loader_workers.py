"""Gives data loader workers their own process group, so that they keep working until their rank has saved.

On SIGTERM, torchrun signals the whole process group of each rank. If the signal killed the workers, torch would raise
an error in the rank before all ranks have agreed on a last step, and nothing would be saved.
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
    """A DataLoader `worker_init_fn` that also calls the script's own. Picklable, for spawned workers."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker process."""
        with contextlib.suppress(OSError):  # setpgid fails if the worker already leads a session
            os.setpgid(0, 0)
        if sys.platform == "linux":  # a SIGKILL to the rank's group must end the worker too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if self._then is not None:
            self._then(worker_id)


def set_apart(loader: object) -> None:
    """Makes workers that the torch data loader starts from now on leave this rank's process group.

    Only in the main thread: any other thread may end before the process does, and its workers would then be killed.
    """
    given = getattr(loader, "worker_init_fn", None)
    has_workers = getattr(loader, "num_workers", 0) and hasattr(loader, "worker_init_fn")
    if has_workers and not isinstance(given, InOwnGroup) and threading.current_thread() is threading.main_thread():
        loader.worker_init_fn = InOwnGroup(given)  # type: ignore[attr-defined]
