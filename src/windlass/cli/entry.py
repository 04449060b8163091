"""The script `windlass`: has a process that has imported all do the command, or does it here where there is none.

Importing takes most of the time of a short command. So a command that spoke with a cluster leaves a process behind that
has done the imports (`cli/ahead.py`), and the next ones are forks of it: in this folder and environment, on this
terminal, with this one passing signals on and ending as the fork does. `WINDLASS_WARM_COMMANDS=0` turns it off.
"""

from __future__ import annotations

import os
import signal
import sys

from windlass.engines import ahead

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

HERE = ("exec", "warm", "completion", "doctor")
"""Commands that are done here: they look at this very process or its terminal, or end the other one."""
TO_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)
"""What a terminal sends to all that a command has started."""
PASSED_ON = (*TO_GROUP, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
CLUSTER = "windlass.engines.kubernetes.client"
"""Where this is imported, imports are what the command took longest for."""


def main() -> None:
    """Do the command line, and exit with its code."""
    arguments = sys.argv[1:]
    may_fork = _may_fork(arguments)
    code = _by_fork(arguments) if may_fork else None
    if code is None:
        from windlass.cli.main import main as do_here

        try:
            do_here(arguments)
        finally:
            if may_fork and CLUSTER in sys.modules:
                from windlass.cli.ahead import begin

                begin(home())
    sys.exit(code)


def home() -> str:
    """As `windlass.runs.store.default_home`, which takes too long to import."""
    user = os.environ.get("HOME") or os.path.expanduser("~")
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(user, ".local", "share")
    return os.path.abspath(os.path.expanduser(os.environ.get("WINDLASS_HOME") or os.path.join(data, "windlass")))


def _may_fork(arguments: Sequence[str]) -> bool:
    """Whether a fork could stand for this process."""
    if not ahead.is_possible() or "_WINDLASS_COMPLETE" in os.environ or not (sys.stdin and sys.stdout and sys.stderr):
        return False
    if next((word for word in arguments if not word.startswith("-")), "") in HERE:
        return False
    # What the shell's <(…) stands for is an open file of this process.
    return not any("/fd/" in word for word in arguments) and _is_in_foreground()


def _is_in_foreground() -> bool:
    """A command in the background is stopped by the kernel when it reads its terminal; a fork would not be."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True  # no terminal


def _by_fork(arguments: Sequence[str]) -> int | None:
    """The exit code of the command, done by a fork; None where it is to be done here."""
    try:
        folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        forked = ahead.fork(home(), {"argv": list(arguments)}, [0, 1, 2, folder])
    finally:
        os.close(folder)
    if forked is None:
        return None
    connection, pid = forked
    with connection:
        return _accompany(connection, pid)


def _accompany(connection: socket.socket, pid: int) -> int:
    """Let the fork begin, pass signals on to it, and give its exit code; end by its signal where one ended it."""
    passed: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        passed.append(number)
        connection.send(bytes([number]))

    def pause(_number: int, _frame: FrameType | None) -> None:
        os.killpg(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(pid, signal.SIGCONT)

    actions: list[tuple[int, Any]] = [*((number, pass_on) for number in PASSED_ON), (signal.SIGTSTP, pause)]
    for number, action in actions:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, action)
    connection.settimeout(None)
    try:
        connection.sendall(b"g")
        said = connection.recv(16)
    except OSError:
        said = b""
    if not said:
        _die_of(passed[-1] if passed else signal.SIGKILL)
    return int(said)


def _die_of(number: int) -> None:
    """End as the fork did, which was ended by a signal."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
