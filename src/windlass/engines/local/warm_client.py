"""Client of one warm process: its files in the folder `warm/`, and its socket."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.worker import process, warm_server
from windlass.worker.environ_watch import lasting

PROGRAM: Final = Path(warm_server.__file__)
KILLED_BY: Final = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a killed process, which do not show that its imports crash."""
POLL_SECONDS: Final = 0.1
"""Seconds between two checks of whether to keep waiting."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the warm processes of one home."""

    processes: int = 3
    """Maximum number of processes. For a new process beyond it, the least recently used one ends."""
    idle_seconds: float = 900.0
    """Seconds without a fork after which a process ends."""
    resident_bytes: int | None = None
    """Maximum memory of all processes together. Beyond it, the least recently used process ends. Default: a quarter of
    this machine's memory."""
    import_seconds: float = 120.0
    """Seconds after its start for which callers wait for the imports of a process; also the limit for the trial of a
    module."""
    trial_delay_seconds: float = 5.0
    """Seconds after its start at which a process begins to try modules, so that trials do not slow the start of the
    run."""
    answer_seconds: float = 10.0
    """Seconds for a response of a process whose imports are done. A process that exceeds them is killed as hung."""
    refused_seconds: float = 900.0
    """Seconds during which an unusable process is not started again."""

    @property
    def most_resident_bytes(self) -> int:
        """Maximum memory of all processes together."""
        return _machine_bytes() // 4 if self.resident_bytes is None else self.resident_bytes


class WarmClient:
    """The warm process called `name`, which may have ended. Only its user can connect to its socket."""

    def __init__(self, folder: Path, name: str, bounds: Bounds) -> None:
        self.folder = folder
        self.name = name
        self.bounds = bounds

    def progress(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state, age and memory of a live process. Raises OSError if it has ended."""
        age = {"age_seconds": round(time.time() - known["started_at"], 1)}
        memory = {"resident_bytes": process.resident_bytes(known["pid"])}
        if not self.is_ready():
            return {"state": "importing", **age, **memory}
        return {"state": "ready", **_as_mapping(self._path("ready").read_bytes()), **age, **memory}

    def connect(self) -> socket.socket:
        """Connects to the process and checks that it belongs to this user. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._address() as address:
                connection.settimeout(self.bounds.answer_seconds)
                connection.connect(address)
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.getuid():  # a process of another user must not receive the environment
                raise PermissionError(errno.EPERM, f"its socket belongs to user {uid}")
            return connection
        except BaseException:
            connection.close()
            raise

    @contextlib.contextmanager
    def _address(self) -> Iterator[str]:
        """Yields a short path of the socket: a Unix address has at most 107 bytes, and the path of the home may be
        longer.
        """
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{self.name}.sock"
        finally:
            os.close(folder)

    def start(self, python: str, modules: Sequence[str], env: Mapping[str, str], tried: Path) -> None:
        """Starts the process again, to import `modules` in the environment `env`. The file `tried` lists the modules
        that are safe to import.

        Raises OSError.
        """
        self.end()
        path = self._path("sock")
        settings = {
            "socket": str(path),
            "modules": list(modules),
            "tried": str(tried),
            "idle_seconds": self.bounds.idle_seconds,
            "max_resident_bytes": self.bounds.most_resident_bytes,
            "import_seconds": self.bounds.import_seconds,
            "trial_delay_seconds": self.bounds.trial_delay_seconds,
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with self._address() as address:
                listener.bind(address)
            path.chmod(0o600)
            listener.listen(64)
            words = [python, str(PROGRAM), str(listener.fileno()), json.dumps(settings), process.PADDING]
            log = os.open(self._path("log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                popen = subprocess.Popen(
                    words,
                    env=lasting(env),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[listener.fileno()],
                )
            except BaseException:
                path.unlink()
                raise
            finally:
                os.close(log)
            # Python warns about an unfinished process otherwise, but this process must outlive its parent.
            popen.returncode = 0
        born = process.stat(popen.pid)
        about = {
            "pid": popen.pid,
            "start_ticks": born.start_ticks if born else 0,
            "boot": process.boot_id(),
            "started_at": time.time(),
            "python": python,
            "modules": list(modules),
        }
        whole = self._path("json.start")
        try:
            whole.write_text(json.dumps(about))
            whole.replace(self._path("json"))
        except OSError:
            # On a full disk, no command would list or end the process.
            process.send(popen.pid, signal.SIGKILL)
            self.remove_files(keep_log=True)
            raise

    def ask(
        self,
        connection: socket.socket,
        request: Mapping[str, Any],
        descriptors: Sequence[int],
        gave_up: Callable[[], bool],
    ) -> dict[str, Any]:
        """Sends a request and returns the response. Waits while the process imports, and kills it if it hangs.

        Raises OSError, ValueError.
        """
        connection.settimeout(POLL_SECONDS)
        began = time.monotonic()
        answer = b""
        try:
            _send(connection, request, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return self._ended()
        while not answer.endswith(b"\n"):
            try:
                piece = connection.recv(65536)
            except TimeoutError:
                if gave_up():
                    return {"refused": "the run is to stop"}
                if self._is_importing():
                    began = time.monotonic()  # the time limit for the response begins after the imports
                if reason := self._why_not_wait(time.monotonic() - began):
                    return {"refused": reason}
                continue
            except ConnectionResetError:
                piece = b""
            if not piece:
                return self._ended()
            answer += piece
        return _as_mapping(answer)

    def _is_importing(self) -> bool:
        return self.known() is not None and not self.is_ready()

    def _why_not_wait(self, waited_seconds: float) -> str:
        known = self.known()
        if known is None or self.is_ready():
            if waited_seconds < self.bounds.answer_seconds:
                return ""
            self.end()
            return f"the warm process did not answer within {self.bounds.answer_seconds:g} s, and was ended"
        imports_for = time.time() - known["started_at"]
        if imports_for < self.bounds.import_seconds:
            return ""
        reason = f"the warm process did not finish its imports within {self.bounds.import_seconds:g} s"
        self.end_and_refuse(reason)
        return reason

    def _ended(self) -> dict[str, Any]:
        """Returns the refusal for a process that ended without a response."""
        if self.is_ready():
            self.end()  # the process has ended, or another process now has its address
            return {"refused": "the warm process was ended", "again": True}
        if not self._path("json").exists():
            return {"refused": "the warm process was ended while it imported"}
        ended_by = self._ended_by()
        # An exit code shows that the imports crash, which is lasting. A killed process, for example for lack of memory,
        # may succeed next time.
        lasting = {"lasting": True} if ended_by is not None and ended_by not in KILLED_BY else {}
        return {"refused": "the warm process ended while it imported", **lasting}

    def _ended_by(self) -> int | None:
        """Returns the exit code of a process that this process started, −N for signal N; None if another process
        started it.
        """
        try:
            pid = int(_as_mapping(self._path("json").read_bytes())["pid"])
            give_up = time.monotonic() + self.bounds.answer_seconds
            while time.monotonic() < give_up:  # the end is awaited, because a process closes its sockets before it ends
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                time.sleep(0.01)
        except (OSError, ValueError, KeyError):
            pass
        return None

    def is_ready(self) -> bool:
        """Whether the process has finished its imports."""
        return self._path("ready").exists()

    def known(self) -> dict[str, Any] | None:
        """Returns the recorded facts of a live process; None if no such process runs."""
        about = self.written()
        return about if about is not None and is_alive(about) else None

    def written(self) -> dict[str, Any] | None:
        """Returns the recorded facts of a process, alive or not; None if they are missing or incomplete."""
        try:
            about = _as_mapping(self._path("json").read_bytes())
        except (OSError, ValueError):
            return None
        return about if about.keys() >= {"pid", "start_ticks", "boot"} else None

    def end(self, *, keep_log: bool = False) -> None:
        """Kills the process if it runs, and removes its files. The process has no state to lose, and its forks keep
        running.
        """
        known = self.known()
        if known is not None:
            process.send(known["pid"], signal.SIGKILL)
        self.remove_files(keep_log=keep_log)

    def remove_files(self, *, keep_log: bool = False) -> None:
        """Removes the files of an ended process."""
        for kind in ("sock", "json", "json.start", "ready", "refused", *(() if keep_log else ("log",))):
            with contextlib.suppress(IsADirectoryError, FileNotFoundError):
                self._path(kind).unlink()

    def size(self) -> int:
        """Returns the bytes of memory that the process uses; 0 if it has ended."""
        known = self.known()
        try:
            return process.resident_bytes(known["pid"]) if known else 0
        except OSError:
            return 0

    def used_at(self, otherwise: float) -> float:
        """Returns the time of the last fork in Unix seconds; `otherwise` if the process is not ready."""
        try:
            return self._path("ready").stat().st_mtime
        except FileNotFoundError:
            return otherwise

    def end_and_refuse(self, why: str) -> None:
        """Kills the process, and records a reason for which no such process is started for a while."""
        self.end(keep_log=True)
        self._path("refused").write_text(why, encoding="utf-8")

    def refusal(self) -> str:
        """Returns the recorded reason why no process of this kind is used now, or ""."""
        path = self._path("refused")
        try:
            if time.time() - path.stat().st_mtime < self.bounds.refused_seconds:
                return path.read_text(encoding="utf-8")
            path.unlink()
        except FileNotFoundError:
            pass
        return ""

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self.name}.{kind}"


def is_alive(about: Mapping[str, Any]) -> bool:
    """Whether the process with these recorded facts is alive."""
    return process.is_same(about["pid"], about["start_ticks"], about["boot"])


def _send(connection: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    data = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [data], list(descriptors))
    if sent < len(data):  # an empty send would fail if the process has answered and closed already
        connection.sendall(data[sent:])


def _as_mapping(data: bytes) -> dict[str, Any]:
    result = json.loads(data)
    if not isinstance(result, dict):
        raise ValueError("not what a warm process says")
    return result


def _machine_bytes() -> int:
    """Returns the memory of this machine, or of the container of this process, in bytes."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # the file contains `max` if there is no limit
        return machine
