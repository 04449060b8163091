"""Two ways to start a rank: a new interpreter (cold), or a fork of this process, which has done the imports (warm)."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Callable, Protocol  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker import netns, process
from windlass.worker.rank import DONE_VARIABLE, end, run

STDIN, STDOUT, STDERR = 0, 1, 2
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Start(Protocol):
    """Starts one rank as a child of this process and the leader of a new process group."""

    name: str
    """Kind of start: `cold` or `warm`."""

    def __call__(self, argv: list[str], cwd: str, env: dict[str, str], output: int, beside: int = 0) -> int:
        """Starts `argv` in `cwd` with exactly the environment `env`, and stdout and stderr sent to `output`. Returns
        the pid.

        If `beside` is given, the rank joins the network, host name and mount namespaces of that process. Raises
        OSError.
        """


class ColdStart:
    """Starts every rank in a new interpreter."""

    name = "cold"

    def __init__(self) -> None:
        self._birth = process.Birth()
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(self, argv: list[str], cwd: str, env: dict[str, str], output: int, beside: int = 0) -> int:
        """Starts the rank in a new interpreter and returns its pid. Raises OSError."""

        def prepare() -> None:
            self._birth()
            if beside:
                netns.join(beside)

        try:
            popen = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=prepare
            )
        except subprocess.SubprocessError as error:
            raise OSError(f"cannot join process {beside}") from error
        popen.returncode = 0  # Popen must not reap the rank: the node does
        self._started.append(popen)
        return popen.pid


class WarmStart:
    """Forks this process, which has imported the script's modules: a start takes 20 milliseconds instead of seconds.

    `argv` must be the command line of a Python rank: interpreter, `rank.py`, script, arguments.
    """

    name = "warm"

    def __init__(self, prepare: Callable[[list[str]], None], wait: Callable[[], None] = lambda: None) -> None:
        """`prepare` runs in the child with the rank's command line, and resets it to the state of a new interpreter
        (`fork_reset.py`). `wait` runs in the child after `prepare` and before the script.
        """
        self._birth = process.Birth()
        self._prepare = prepare
        self._wait = wait

    def __call__(self, argv: list[str], cwd: str, env: dict[str, str], output: int, beside: int = 0) -> int:
        """Starts the rank by forking this process and returns its pid. Raises OSError."""
        # Raises the error of starting an interpreter in a missing folder.
        os.stat(cwd)
        # A signal that arrived before the child resets the handlers would be consumed by the node's handlers, and the
        # rank would never see it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            pid = os.fork()
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        if pid == 0:
            code = 127
            try:
                self._birth()
                if beside:
                    netns.join(beside)
                _become(argv, cwd, env, output)
                self._prepare([argv[0], *argv[2:]])
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                self._wait()
                done = os.environ.pop(DONE_VARIABLE, None)
                code = run(argv[2:], done)
                end(code, done)
            finally:
                os._exit(code & 0xFF)  # a rank must never return into the code of the node
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid


def _become(argv: list[str], cwd: str, env: dict[str, str], output: int) -> None:
    """Sets the descriptors, signals, working folder, environment and name of a newly started interpreter."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.dup2(output, STDOUT)
    os.dup2(output, STDERR)
    _close_above(STDERR)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    process.rename([argv[0], *argv[2:]])


def _close_above(last: int) -> None:
    """Closes the descriptors above `last`, which all belong to the node.

    The objects that own the descriptors must not be garbage-collected: they would close files that the script has
    opened under the same numbers. Frames of callers, which never return, keep references to these objects.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > last:
            try:
                os.close(int(name))
            except OSError:
                pass
