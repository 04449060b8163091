"""Resets a fork of a warm process to the state of a new interpreter: inherited settings, streams, randomness, threads.

`inherit` runs in the node worker and sets everything that a new process would inherit from its parent. `ForkReset` runs
in a rank.
"""

from __future__ import annotations

import io
import itertools
import os
import resource
import signal
import sys
import time
from typing import Any

from windlass.worker import blas_threads
from windlass.worker.fork_safety import OVERWRITTEN_SIGNALS, Imports, process_state

_CHOSEN_SEEDS = 1 << 32
"""Seeds below this number were chosen by the user; torch draws its own seeds from 53 bits."""
_UNCHANGEABLE = (signal.SIGKILL, signal.SIGSTOP)


def inheritance() -> dict[str, Any]:
    """Returns the settings that a child of this process would inherit, as JSON data for `inherit`."""
    numbers = [int(number) for number in signal.valid_signals() if number not in _UNCHANGEABLE]
    # Every Python interpreter ignores SIGPIPE and SIGXFSZ, and resets both in the processes that it starts.
    own = (signal.SIGPIPE, signal.SIGXFSZ)
    ignored = [number for number in numbers if number not in own and signal.getsignal(number) is signal.SIG_IGN]
    return {**process_state(), "environ": dict(os.environ), "ignored": ignored}


def inherit(given: dict[str, Any]) -> None:
    """Applies `given`, the inheritable settings of another process. Raises OSError, ValueError."""
    os.environ.clear()
    os.environ.update(given["environ"])
    os.umask(given["umask"])
    for name, limits in given["limits"].items():
        number = int(name)
        if resource.getrlimit(number) != tuple(limits):
            resource.setrlimit(number, tuple(limits))
    os.sched_setaffinity(0, given["CPU affinity"])
    fixed = {*_UNCHANGEABLE, *OVERWRITTEN_SIGNALS, signal.SIGXFSZ}
    for number in signal.valid_signals():
        ignored = number in given["ignored"]
        if number not in fixed and (ignored or signal.getsignal(number) is signal.SIG_IGN):
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, given["signal mask"])


class ForkReset:
    """Resets a forked rank to the state of a newly started one."""

    def __init__(self, imports: Imports) -> None:
        """Must be called in the warm process after its imports."""
        self.watch = imports.watch
        self._variables = imports.variables_changed()
        self._handlers = {number: signal.getsignal(number) for number in OVERWRITTEN_SIGNALS}
        self._kept: list[object] = []
        self._own = [name for name in sys.modules if _is_own(name)]
        self._last = next(reversed(sys.modules))
        """Last imported module. Forks check only the names of later modules, because reading all would copy memory
        pages."""

    def __call__(self, argv: list[str]) -> None:
        """Resets this fork, which becomes the rank with the command line `argv`: interpreter, script, arguments."""
        for number, handler in self._handlers.items():
            if handler is not None:
                signal.signal(number, handler)
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if hasattr(sys, "orig_argv"):
            sys.orig_argv = list(argv)
        for descriptor, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
            _reopen(getattr(sys, f"__{name}__"), name, descriptor, mode)
        _reseed()
        _reset_thread_id()
        _reset_log_clock()
        blas_threads.set_threads(os.environ)
        # Windlass's modules are removed from `sys.modules`, because the script may import another version, but are kept
        # in memory.
        since = itertools.takewhile(lambda name: name != self._last, reversed(sys.modules))
        for name in [*self._own, *filter(_is_own, since)]:
            self._kept.append(sys.modules.pop(name, None))


def _is_own(module: str) -> bool:
    return module.split(".")[0] == "windlass"


def _reopen(stream: Any, name: str, number: int, mode: str) -> None:
    """Reopens a standard stream in the same object, because a module may have stored that object at import.

    The stream caches properties of its file: whether it is seekable, and its block size. Follows `create_stdio` in
    CPython's `pylifecycle.c`.
    """
    if type(stream) is not io.TextIOWrapper:
        return
    unbuffered = isinstance(stream.buffer, io.FileIO)
    buffer: Any = open(number, mode, 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    raw = buffer if unbuffered else buffer.raw
    raw.name = f"<{name}>"
    lines = not unbuffered and (number == 2 or os.isatty(number))
    stream.__init__(  # type: ignore[misc]
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=lines,
        write_through=stream.write_through,
    )
    vars(stream)["mode"] = mode[0]


def _reseed() -> None:
    """Reseeds the random sources that Python does not reseed in a fork. (Python reseeds only `random`.)"""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        multiprocessing.current_process().authkey = os.urandom(32)
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()  # a new interpreter seeds the legacy global generator from entropy
    torch = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if generator is not None and generator.initial_seed() >= _CHOSEN_SEEDS:
        generator.seed()  # torch seeds its CPU generator at random, unless an import has chosen the seed


def _reset_thread_id() -> None:
    """Updates the native id of the main thread: a fork keeps the id of the thread that forked."""
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_native_id"):
        threading.main_thread()._set_native_id()


def _reset_log_clock() -> None:
    """Resets the start time in `logging`, from which log records count their relative time."""
    logging = sys.modules.get("logging")
    began = getattr(logging, "_startTime", None)
    if began is not None:
        logging._startTime = time.time_ns() if isinstance(began, int) else time.time()  # type: ignore[union-attr]
