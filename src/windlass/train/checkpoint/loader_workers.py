"""Gives the workers of a data loader a process group of their own, so that they work until their rank has saved.

torchrun, when it receives SIGTERM, sends it to the whole process group of each rank. The workers die of it at once,
and torch raises that in the rank before the ranks have agreed on a step: nothing is saved.
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
    """The `worker_init_fn` of a loader; it calls the one that the script has set. Pickled where workers are spawned."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker."""
        with contextlib.suppress(OSError):  # it leads a session already
            os.setpgid(0, 0)
        if sys.platform == "linux":  # SIGKILL for the rank's group ends the worker too
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if self._then is not None:
            self._then(worker_id)


def set_apart(loader: object) -> None:
    """Have the workers that a loader of torch's kind starts from now on leave the process group of this rank.

    In the main thread alone: another one may end before the process, and its workers would be killed then.
    """
    given = getattr(loader, "worker_init_fn", None)
    has_workers = getattr(loader, "num_workers", 0) and hasattr(loader, "worker_init_fn")
    if has_workers and not isinstance(given, InOwnGroup) and threading.current_thread() is threading.main_thread():
        loader.worker_init_fn = InOwnGroup(given)  # type: ignore[attr-defined]
