"""Runs the container of one host and writes its log stream: `python -m windlass.engines.sagemaker.twin.host`.

The process reads a `HostSpec` as JSON from standard input, so that no credential is on a command line or on disk.
SIGTERM is forwarded to the container's first process; SIGUSR1 kills all processes of the host. The host ends with its
manager. The exit code of the container is written to `REPORT`.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.engines.sagemaker.twin.logs import LogWriter
from windlass.storage.files import write_whole
from windlass.worker import process
from windlass.worker.netns import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_BIND,
    MS_REC,
    MS_SLAVE,
    call,
    enter,
    mount,
)
from windlass.worker.protocol import NetworkSpec

REPORT: Final = "report.json"
"""File in the folder of a host: `{"exit": 0}`, or `{"error": "..."}` if the container could not be started."""
KILL: Final = signal.SIGUSR1
HANDLER_SECONDS: Final = 5.0
"""Seconds after a stop in which a program without a PID namespace may install its SIGTERM handler. After that, SIGTERM
is sent anyway and ends it; in a PID namespace, the program would ignore the signal, as in any container."""
POLL_SECONDS: Final = 0.02
NOT_FOUND, NOT_RUNNABLE = 127, 126
"""Exit codes of a container whose entry point does not exist or cannot be executed; shells use the same codes."""
OPT: Final = Path("/opt")
READ_BYTES: Final = 1 << 16
PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Settings of the process of a host."""

    name: str
    """Name of the host, such as `algo-1`."""
    folder: str
    """Folder of the host, which contains its `opt/ml`."""
    log: str
    """File of the log stream."""
    command: list[str]
    environment: dict[str, str]
    is_isolated: bool
    """Whether the host has its own namespaces."""
    hosts: dict[str, str]
    """Address of each host of the job by its name."""
    network: str = ""
    """Path of the network namespace; empty for the network of this machine."""


class Host:
    """Runs the container of a host."""

    def __init__(self, spec: HostSpec) -> None:
        self._spec = spec
        self._pid = 0
        self._pending = 0
        """The last signal that was not forwarded yet; 0 for none."""
        self._pending_since = 0.0
        """Monotonic seconds at which the pending signal arrived."""
        self._signalled, wakes = os.pipe()
        """Pipe that becomes readable on a signal: a signal right before or during a `select` would not interrupt it."""
        for one in (self._signalled, wakes):
            os.set_blocking(one, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def run(self) -> dict[str, Any]:
        """Runs the container to its end and returns the report. Raises OSError if the container cannot be started."""
        for number in (signal.SIGTERM, KILL):
            signal.signal(number, self._forward)
        process.adopt_orphans()
        log = LogWriter(Path(self._spec.log), time.time)
        if self._spec.is_isolated:
            self._isolate()
        output, problem = self._start()
        self._pump(output, log)
        code = self._wait(output, log)
        log.close()
        return {"error": problem} if problem else {"exit": code}

    def _forward(self, number: int, _frame: object) -> None:
        self._pending, self._pending_since = number, time.monotonic()
        self._forward_pending()

    def _forward_pending(self) -> None:
        """Forwards the pending signal once the container handles it.

        The kernel drops a signal to the first process of a PID namespace that has no handler for it. A stop during the
        start of an interpreter would be lost, and the container would run until it is killed.
        """
        if not self._pending or not self._pid:
            return
        is_isolated = self._spec.is_isolated
        is_late = not is_isolated and time.monotonic() - self._pending_since > HANDLER_SECONDS
        if self._pending == KILL or is_late or _has_handler(1 if is_isolated else self._pid, self._pending):
            process.send(self._pid, signal.SIGKILL if self._pending == KILL else self._pending)
            self._pending = 0

    # -- namespaces ---------------------------------------------------------------------------------------------------

    def _isolate(self) -> None:
        """Enters namespaces for the host name, the mounts and the processes of children. Raises OSError."""
        spec = self._spec
        if spec.network:
            enter(NetworkSpec(spec.network, spec.name, spec.hosts), spec.folder)
            call("unshare", ctypes.c_int(CLONE_NEWPID), what="create a PID namespace")
        else:
            unshare()
            socket.sethostname(spec.name)
            self._mount_hosts_file()
        mount_ml(Path(spec.folder))

    def _mount_hosts_file(self) -> None:
        """Mounts an /etc/hosts with the hosts of the job and the entries of this machine, whose network is shared."""
        known = Path("/etc/hosts")
        if not known.exists():
            return
        own = [f"{address} {name}" for name, address in self._spec.hosts.items()]
        path = Path(self._spec.folder) / "etc-hosts"
        path.write_text("\n".join([*own, known.read_text(errors="replace")]))
        path.chmod(0o644)
        mount(str(path), str(known), None, MS_BIND)

    # -- the container ------------------------------------------------------------------------------------------------

    def _start(self) -> tuple[int, str]:
        """Forks the first process of the container; returns the descriptor of its output, and an error of its start or
        "".
        """
        output, its_output = os.pipe()
        error, its_error = os.pipe()
        here, alive = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(alive)
            self._become_container(here, its_output, its_error)
        for one in (its_output, its_error, here):
            os.close(one)
        # The pipe closes when the container's program is executed. Before that, the child still has the signal handlers
        # of this process, which would swallow a signal.
        with open(error, "rb") as file:
            problem = file.read().decode(errors="replace")
        self._pid = pid
        return output, problem

    def _become_container(self, here: int, output: int, error: int) -> None:
        """Executes the container's program. Runs in the child and does not return."""
        spec = self._spec
        try:
            for number in (signal.SIGTERM, KILL, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            call("prctl", ctypes.c_int(PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL), what="end with its host")
            if select.select([here], [], [], 0)[0]:  # the parent died before prctl took effect
                os._exit(1)
            if spec.is_isolated:
                mount("proc", "/proc", "proc", 0)
            os.chdir("/opt/ml/code" if spec.is_isolated else f"{spec.folder}/opt/ml/code")
            for at, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
                os.dup2(descriptor, at)
        except BaseException as problem:
            os.write(error, str(problem).encode())
            os._exit(1)
        try:
            os.execvpe(spec.command[0], spec.command, spec.environment)
        except (OSError, ValueError) as problem:
            os.write(1, f"exec: {spec.command[0]}: {getattr(problem, 'strerror', None) or problem}\n".encode())
            os._exit(NOT_FOUND if isinstance(problem, FileNotFoundError) else NOT_RUNNABLE)

    def _pump(self, output: int, log: LogWriter) -> None:
        """Writes the output to the log until the first process has ended."""
        ended = os.pidfd_open(self._pid)
        watched = [output, ended, self._signalled]
        try:
            while True:
                self._forward_pending()
                ready = select.select(watched, [], [], POLL_SECONDS if self._pending else None)[0]
                if self._signalled in ready:
                    os.read(self._signalled, READ_BYTES)
                if output in ready:
                    if data := os.read(output, READ_BYTES):
                        log.feed(data)
                    else:  # all processes have closed the pipe
                        watched.remove(output)
                elif ended in ready:
                    return
        finally:
            os.close(ended)

    def _wait(self, output: int, log: LogWriter) -> int:
        """Waits for the first process, kills its remaining descendants, logs the rest of the pipe, and returns its exit
        code.
        """
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0
        process.end_descendants()
        os.set_blocking(output, False)
        try:
            while data := os.read(output, READ_BYTES):
                log.feed(data)
        except BlockingIOError:  # a process that cannot be killed still has the pipe open
            pass
        return code if code >= 0 else 128 - code


def _has_handler(pid: int, number: int) -> bool:
    """Whether a process handles a signal, according to /proc; True if the process has gone."""
    try:
        # the name of a process may contain any bytes
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def unshare() -> None:
    """Creates namespaces for the host name, the mounts and the processes of children; as non-root user, also a user
    namespace.

    Raises OSError.
    """
    user, group = os.geteuid(), os.getegid()
    kinds = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID | (CLONE_NEWUSER if user else 0)
    call("unshare", ctypes.c_int(kinds), what="create namespaces")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mount(None, "/", None, MS_REC | MS_SLAVE)


def mount_ml(folder: Path) -> None:
    """Mounts `opt/ml` of a host's folder at /opt/ml; other entries of this machine's /opt stay visible. Raises
    OSError.
    """
    target = OPT / "ml"
    # Opened before the mount, which may hide the folder.
    source = os.open(folder / "opt/ml", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if not target.is_dir():
        others = os.open(OPT, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        mount("tmpfs", str(OPT), "tmpfs", 0)
        target.mkdir()
        for one in Path(f"/proc/self/fd/{others}").iterdir():
            _show(one, OPT / one.name)
        os.close(others)
    mount(f"/proc/self/fd/{source}", str(target), None, MS_BIND)
    os.close(source)


def _show(one: Path, at: Path) -> None:
    if one.is_symlink():
        at.symlink_to(one.readlink())
        return
    if one.is_dir():
        at.mkdir()
    else:
        at.touch()
    mount(str(one), str(at), None, MS_BIND | MS_REC)


def _probe(folder: Path) -> None:
    """Raises OSError if this machine does not allow the namespaces and mounts that `is_isolated` needs."""
    unshare()
    socket.sethostname("algo-1")
    mount_ml(folder)
    pid = os.fork()
    if pid == 0:
        try:
            mount("proc", "/proc", "proc", 0)
        except OSError as error:
            sys.stderr.write(str(error))
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise OSError("cannot mount /proc")


def main(arguments: list[str]) -> int:
    """Runs the host that standard input describes; with an argument, a folder that has `opt/ml`, only tests
    isolation.
    """
    if arguments:
        try:
            _probe(Path(arguments[0]))
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        return 0
    spec = HostSpec(**json.load(sys.stdin))
    try:
        report = Host(spec).run()
    except OSError as error:
        report = {"error": str(error)}
    write_whole(Path(spec.folder) / REPORT, json.dumps(report).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
