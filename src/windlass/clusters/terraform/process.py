"""Starts Terraform in a separate session, finds it again after a crash of Windlass, and reads its output.

Terraform writes to a file instead of a pipe, because the exit of Windlass would otherwise kill it by SIGPIPE during an
apply. Terraform inherits a descriptor with a lock (flock) on a file in the folder. The kernel releases that lock when
Terraform and its provider processes have exited, so the lock proves whether any of them is alive, even without /proc.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from windlass.clusters.terraform.folder import write_private
from windlass.worker.process import boot_id, is_locked, is_same, of_session, send, stat

RECORD: Final = "running.json"
KILLED: Final = "killed.json"
"""Records of processes whose end no Windlass process observed: each may have left a state lock."""
KILLED_KEPT: Final = 20
LOCK: Final = "terraform.lock"
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """Record of a Terraform process, which may have exited."""

    command: str
    log: Path
    started_at: float
    """Start time in Unix seconds."""
    machine_id: str
    pid: int = 0
    """Process id; 0 if Windlass was killed while it started Terraform."""
    start_ticks: int = 0
    boot: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether the recorded process itself is alive; `is_held` also counts its providers."""
        return self.pid > 0 and is_same(self.pid, self.start_ticks, self.boot)


def start(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str], *, command: str, log: Path, machine_id: str
) -> subprocess.Popen[bytes]:
    """Starts Terraform in `folder` with its output in `log`.

    The record is written first, so that every process has one, even after a kill. Raises BlockingIOError while an
    earlier process runs, OSError.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        keep_killed(folder)
        record = RunningCommand(command, log, time.time(), machine_id)
        _write_record(folder, record)
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[descriptor],
                umask=0o077,
            )
        line = stat(process.pid)
        ticks = line.start_ticks if line else 0
        _write_record(
            folder, RunningCommand(command, log, record.started_at, machine_id, process.pid, ticks, boot_id())
        )
        return process
    finally:
        os.close(descriptor)


def _write_record(folder: Path, record: RunningCommand) -> None:
    write_private(folder / RECORD, json.dumps({**asdict(record), "log": str(record.log)}).encode())


def record_of(folder: Path) -> RunningCommand | None:
    """Returns the record of the last Terraform process whose end no Windlass process observed; None if there is
    none.
    """
    try:
        found = json.loads((folder / RECORD).read_bytes())
        return RunningCommand(**{**found, "log": Path(found["log"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def keep_killed(folder: Path) -> None:
    """Moves the last record to the records of killed processes, as evidence for `windlass.clusters.recovery.lock`."""
    if (before := record_of(folder)) is not None:
        found = [{**asdict(one), "log": str(one.log)} for one in [*killed_in(folder), before][-KILLED_KEPT:]]
        write_private(folder / KILLED, json.dumps(found).encode())
        forget(folder)


def killed_in(folder: Path) -> list[RunningCommand]:
    """Returns the records of earlier processes whose end no Windlass process observed, without the last one."""
    try:
        found = json.loads((folder / KILLED).read_bytes())
        return [RunningCommand(**{**one, "log": Path(one["log"])}) for one in found]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def forget_killed(folder: Path) -> None:
    """Deletes the records of earlier processes, once their locks are released."""
    (folder / KILLED).unlink(missing_ok=True)


def forget(folder: Path) -> None:
    """Deletes the record of an exited process."""
    (folder / RECORD).unlink(missing_ok=True)


def is_held(folder: Path) -> bool:
    """Whether a Terraform or provider process started by Windlass on this machine is alive."""
    return is_locked(str(folder / LOCK))


def terminate(command: RunningCommand) -> bool:
    """Asks Terraform to finish the running operations and exit.

    Providers get no signal, because they would abort them. Sends SIGTERM, because a process that a script started in
    the background may ignore SIGINT.
    """
    return command.is_alive and send(command.pid, signal.SIGTERM)


def end_orphans(command: RunningCommand) -> None:
    """Kills provider processes whose Terraform process is gone: their results can no longer reach the state."""
    if command.pid and not command.is_alive and command.boot == boot_id():
        for pid in of_session(command.pid):
            send(pid, signal.SIGTERM)


class Tail:
    """Reads complete lines of a log while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self, *, is_over: bool = False) -> Iterator[str]:
        """Yields the lines since the last call; with `is_over`, also a last line without a line end."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            found = file.read()
            self._offset += len(found)
            *complete, self._rest = (self._rest + found).split(b"\n")
            for line in complete:
                yield line.decode("utf-8", "replace")
        if is_over and self._rest:
            yield self._rest.decode("utf-8", "replace")
            self._rest = b""


def others_at_work(folder: Path) -> list[int]:
    """Returns the pids of live Terraform processes that may hold this folder's state lock, however they were started.

    These are the processes on this machine whose working directory is this folder, a folder with the same backend, or a
    folder that this user may not read. Raises OSError without /proc.
    """
    found = []
    backend = _initialized_backend(folder)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_terraform(entry.name):
            try:
                work = (entry / "cwd").readlink()
            except FileNotFoundError:
                continue
            except OSError:
                found.append(int(entry.name))
                continue
            if work == folder.resolve() or (backend and _initialized_backend(work) == backend):
                found.append(int(entry.name))
    return found


def _is_terraform(pid: str) -> bool:
    line = stat(int(pid))
    if line is None or line.state == "Z":
        return False
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        return file.read().strip() in (b"terraform", b"tofu")
    return False


def _initialized_backend(folder: Path) -> tuple[object, ...] | None:
    """Returns the identity of the remote state that a folder was initialized for; None for a local state."""
    try:
        found = json.loads((folder / ".terraform" / "terraform.tfstate").read_bytes())["backend"]
        config = found["config"]
        return (found["type"], config["bucket"], config["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
