"""Processes of a node: identifies them across reuse of process ids and reboots, and ends all of them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import time
from typing import NamedTuple

PADDING = "." * 4000
"""Last argument of a process that forks ranks; reserves space in which `rename` shows their command lines."""
Identity = tuple[int, int]
"""Process id, and the kernel ticks from boot to the start of the process. Identifies a process within one boot."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_MM = 35
_PR_SET_MM_ARG_END = 9
_PR_SET_CHILD_SUBREAPER = 36


class ProcessStat(NamedTuple):
    """Fields of `/proc/PID/stat`."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    start_ticks: int
    """Kernel ticks from boot to the start of the process. Together with process id and boot id, they identify the
    process."""


def stat(pid: int) -> ProcessStat | None:
    """Reads `/proc/PID/stat`. Returns None if there is no such process, or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("ascii", "replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the program name may contain spaces and parentheses
    return ProcessStat(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], int(fields[19]))


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a system file; empty if the file cannot be read. Invalid UTF-8 is replaced, because names may
    be any bytes.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def boot_id() -> str:
    """Returns the id of the machine's current boot. Process ids and start ticks are only valid within one boot."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def is_same(pid: int, start_ticks: int, boot: str) -> bool:
    """Whether the process with this pid and start time is still running. A zombie counts as ended."""
    found = stat(pid)
    return found is not None and found.start_ticks == start_ticks and found.state != "Z" and boot == boot_id()


def resident_bytes(pid: int | str = "self") -> int:
    """Returns the resident memory of a process in bytes, shared pages included. Raises OSError."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def all_processes() -> list[ProcessStat]:
    """Returns all processes; empty without /proc."""
    try:
        found = [stat(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    return [line for line in found if line is not None]


def of_session(session: int) -> list[int]:
    """Returns the ids of the live processes of a session, whichever parents they have now."""
    return [line.pid for line in all_processes() if line.session == session and line.state != "Z"]


def kill_session(session: int) -> None:
    """Sends SIGKILL to all processes of a session."""
    for pid in of_session(session):
        send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> bool:
    """Signals a process. Returns False if the process has ended or belongs to another user, such as root
    after `sudo`.
    """
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_group(group: int, number: int) -> None:
    """Signals a process group. Ignores groups that have ended or belong to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def rename(argv: list[str]) -> None:
    """Changes the command line that `ps` shows for this process, if `argv` fits in the space of the old one (Linux).

    The kernel shows the memory between two addresses of the process (proc_pid_stat(5), arg_start and arg_end).
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return
    start, stop = int(fields[45]), int(fields[46])
    text = b"\0".join(os.fsencode(word) for word in argv) + b"\0"
    if start and stop - start > len(text):
        ctypes.memset(start, 0, stop - start)
        ctypes.memmove(start, text, len(text))
        # this call needs a capability; without it, `ps` also shows trailing zeros
        _prctl(_PR_SET_MM, _PR_SET_MM_ARG_END, start + len(text))
    # The buffer must exist until the kernel has read the name.
    name = ctypes.create_string_buffer(os.path.basename(argv[0]).encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(name))


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants, so that they can be found and ended (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(known: set[int]) -> None:
    """Reaps exited children; stops at the first child in `known`, which other code reaps."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in known:
                return
            os.waitpid(found.si_pid, os.WNOHANG)
        except ChildProcessError:
            return


def end_descendants(patience_seconds: float = 5.0) -> None:
    """Kills and reaps all remaining descendants, whatever their session (Linux).

    Requires `adopt_orphans`: when a descendant dies, its children then become children of this process.
    """
    me = os.getpid()
    give_up = time.monotonic() + patience_seconds
    while time.monotonic() < give_up:  # time limit, because a process in uninterruptible sleep cannot be killed
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        signalled = [send(pid, signal.SIGKILL) for pid in children(me)]
        if not any(signalled):
            return  # only processes of other users remain
        time.sleep(0.002)


def mapped(part: str) -> list[str]:
    """Returns the paths that contain `part` among the files mapped into the memory of this process."""
    with open("/proc/self/maps", "rb") as file:  # paths may contain any bytes
        paths = {os.fsdecode(line.split(None, 5)[-1].strip()) for line in file if b"/" in line}
    return sorted(path for path in paths if part in path)


def children(parent: int) -> list[int]:
    """Returns the process ids of the children of a process."""
    return [line.pid for line in all_processes() if line.parent == parent]


class Birth:
    """Runs in a rank between fork and exec: creates its process group, and makes it die with its node.

    Creating the object loads the C library, which must happen before the fork.
    """

    def __init__(self) -> None:
        self._parent = os.getpid()
        self._libc = _libc()

    def __call__(self) -> None:
        """Runs in the child process."""
        os.setpgid(0, 0)
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._parent:  # the node has died already
                os._exit(1)


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_locked(path: str) -> bool:
    """Whether another process holds the lock of a file. False if the file does not exist. Raises OSError."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def _prctl(option: int, *values: int) -> None:
    libc = _libc()
    if libc is not None:
        libc.prctl(option, *(ctypes.c_ulong(value) for value in (*values, 0, 0, 0)[:4]))
