"""Starts Terraform in a session of its own, finds it again after a crash of Windlass, and reads what it prints.

Terraform writes into a file, not into a pipe: the end of Windlass must not end it by SIGPIPE amid an apply. It inherits
a descriptor that holds a lock (flock) on a file of the folder; the kernel drops that lock when Terraform and its
provider processes are gone, so the lock proves whether any of them is still alive, also without /proc.
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
"""Records of processes whose end no Windlass has seen: each may have left a lock on the state."""
KILLED_KEPT: Final = 20
LOCK: Final = "terraform.lock"
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A Terraform process as its record describes it; the process may be gone."""

    command: str
    log: Path
    started_at: float
    """Unix time."""
    machine_id: str
    pid: int = 0
    """0 if Windlass was killed while it started Terraform."""
    start_ticks: int = 0
    boot: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether the recorded process itself is alive; see also `is_held`, which counts its providers too."""
        return self.pid > 0 and is_same(self.pid, self.start_ticks, self.boot)


def start(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str], *, command: str, log: Path, machine_id: str
) -> subprocess.Popen[bytes]:
    """Start Terraform in `folder`, output to `log`. The record is written before, so that no kill can leave a process
    without one. Raises BlockingIOError while an earlier one runs, OSError.
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
    """The record of the last Terraform process whose end no Windlass has seen; None if there is none."""
    try:
        found = json.loads((folder / RECORD).read_bytes())
        return RunningCommand(**{**found, "log": Path(found["log"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def keep_killed(folder: Path) -> None:
    """Move the last record to those of killed processes: it is a proof, see `windlass.clusters.recovery.lock`."""
    if (before := record_of(folder)) is not None:
        found = [{**asdict(one), "log": str(one.log)} for one in [*killed_in(folder), before][-KILLED_KEPT:]]
        write_private(folder / KILLED, json.dumps(found).encode())
        forget(folder)


def killed_in(folder: Path) -> list[RunningCommand]:
    """Records of earlier processes whose end no Windlass has seen, that of the last one apart."""
    try:
        found = json.loads((folder / KILLED).read_bytes())
        return [RunningCommand(**{**one, "log": Path(one["log"])}) for one in found]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []


def forget_killed(folder: Path) -> None:
    """Delete the records of earlier processes: their locks are released."""
    (folder / KILLED).unlink(missing_ok=True)


def forget(folder: Path) -> None:
    """Delete the record of a process that is gone."""
    (folder / RECORD).unlink(missing_ok=True)


def is_held(folder: Path) -> bool:
    """Whether Terraform or a provider that a Windlass of this machine started is alive."""
    return is_locked(str(folder / LOCK))


def terminate(command: RunningCommand) -> bool:
    """Ask Terraform to finish the operations under way and to end. Its providers get no signal: they would drop them.

    SIGTERM: a process that was started with SIGINT ignored, as in the background of a script, ignores it for good.
    """
    return command.is_alive and send(command.pid, signal.SIGTERM)


def end_orphans(command: RunningCommand) -> None:
    """End provider processes whose Terraform is gone: they can write nothing into the state any more."""
    if command.pid and not command.is_alive and command.boot == boot_id():
        for pid in of_session(command.pid):
            send(pid, signal.SIGTERM)


class Tail:
    """Reads complete lines of a log as they are written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def lines(self, *, is_over: bool = False) -> Iterator[str]:
        """Lines since the last call; with `is_over`, also a last one without a line end."""
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
    """Pids of live Terraform processes that may hold the lock of this folder's state, however they were started.

    That is each one on this machine that works in the folder, or in a folder with the same backend, or whose folder
    this user may not see. Raises OSError without /proc.
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
    """What identifies the remote state that a folder was initialized for; None for a local state."""
    try:
        found = json.loads((folder / ".terraform" / "terraform.tfstate").read_bytes())["backend"]
        config = found["config"]
        return (found["type"], config["bucket"], config["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
