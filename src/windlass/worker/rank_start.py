"""The two ways in which a node starts a rank: a new interpreter (cold), or a fork of this one, warm with imports."""

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
    """Starts one rank, as a child of this process and the leader of a process group of its own."""

    name: str
    """`cold` or `warm`."""

    def __call__(self, argv: list[str], cwd: str, env: dict[str, str], output: int, beside: int = 0) -> int:
        """Start `argv` in `cwd` with exactly `env`, both outputs going to descriptor `output`; give its pid.

        It gets the network, host name and mounts of process `beside`, if one is given. Raises OSError.
        """


class ColdStart:
    """A new interpreter: always right."""

    name = "cold"

    def __init__(self) -> None:
        self._birth = process.Birth()
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(self, argv: list[str], cwd: str, env: dict[str, str], output: int, beside: int = 0) -> int:
        """See `Start`."""

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
        popen.returncode = 0  # the node reaps it by pid
        self._started.append(popen)
        return popen.pid


class WarmStart:
    """A fork of this process, which has imported what the script will: 20 milliseconds instead of seconds.

    `argv` must be that of a Python rank: interpreter, `rank.py`, script, arguments.
    """

    name = "warm"

    def __init__(self, prepare: Callable[[list[str]], None], wait: Callable[[], None] = lambda: None) -> None:
        """`prepare` runs in the child with its command line, and resets it to a new interpreter (`fork_reset.py`).

        `wait` runs in it then, before the script.
        """
        self._birth = process.Birth()
        self._prepare = prepare
        self._wait = wait

    def __call__(self, argv: list[str], cwd: str, env: dict[str, str], output: int, beside: int = 0) -> int:
        """See `Start`."""
        os.stat(cwd)  # the error that an interpreter would start with
        # A signal that came before the child has left our handlers would be taken by them, and the rank be deaf to it.
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
                os._exit(code & 0xFF)  # whatever happens, no rank returns into its node
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid


def _become(argv: list[str], cwd: str, env: dict[str, str], output: int) -> None:
    """Take on the descriptors, signals, folder, environment and name of a freshly started interpreter."""
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
    """Close every descriptor above `last`: they are the node's.

    The objects that own them must never be collected, or they would close what the script has opened under the same
    numbers; they are in frames below us, which never return.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > last:
            try:
                os.close(int(name))
            except OSError:
                pass
