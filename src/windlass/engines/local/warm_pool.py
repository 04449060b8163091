"""Finds, starts and asks the warm processes of this user: one for each interpreter, environment and list of modules.

In the folder `warm/` of the home, under the name of each process:

| file | is |
|---|---|
| `NAME.sock` | where it listens, from before it has imported anything |
| `NAME.json` | its pid and identity, what it imports, when it was started |
| `NAME.ready` | how long the imports took, once they are done, and the number of forks; as old as the last fork |
| `NAME.log` | what its imports printed |
| `NAME.refused` | why such a process could not be used, so that the next run need not find out again |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import windlass.worker
from windlass.worker import process
from windlass.worker.fork_reset import inheritance
from windlass.worker.fork_safety import lasting
from windlass.worker.process_fingerprint import name_of, process_fingerprint

PROGRAM: Final = Path(windlass.worker.__file__).with_name("warm_server.py")
KILLED_BY: Final = (-signal.SIGKILL, -signal.SIGTERM)
"""The exit code of a process that was killed."""
LOOK_SECONDS: Final = 0.1
"""How often a waiting caller checks whether to keep waiting."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the warm processes of one home may take."""

    processes: int = 3
    """Concurrent ones; the least recently used is ended for a new one."""
    idle_seconds: float = 900.0
    """Without a start, after which a process ends."""
    resident_bytes: int = 8 << 30
    """Of one process, above which it ends after the start that it has served."""
    import_seconds: float = 120.0
    """From its start, after which no caller waits for its imports."""
    answer_seconds: float = 10.0
    """For an answer of a process whose imports are done; one that takes longer hangs, and is killed."""
    refused_seconds: float = 900.0
    """How long it is remembered that such a process could not be used."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A fork that could not be had."""

    why: str


class WarmPool:
    """The warm processes under one home. The folder is the user's alone, and so is each socket in it."""

    def __init__(self, home: Path, bounds: Bounds = Bounds()) -> None:
        self.folder = home / "warm"
        self.bounds = bounds

    def fork(
        self, *, python: str, modules: Sequence[str], script: str, spec: Path, env: Mapping[str, str], output: int,
        keep: Sequence[int], gave_up: Callable[[], bool] = lambda: False,
    ) -> int | Refused:  # fmt: skip
        """Fork a node worker for the node spec at `spec`; returns its pid, or why it must be started cold.

        `env` is what all ranks of the node share. The worker writes to `output` and holds the descriptors
        of `keep`, of which the first is woken at each event. `gave_up` reports whether the run was abandoned.
        """
        if reason := why_not(env):
            return Refused(reason)
        name = _digest(python, modules, env)
        request = {"spec": str(spec), "script": script, "inherit": inheritance()}
        reason = "no warm process could be reached"
        try:
            for _ in range(3):  # a process that ends just now, or is outdated, is followed by a new one
                if remembered := self._remembered(name):
                    return Refused(remembered)
                with self._connect_or_start(name, python, modules, env) as connection:
                    try:
                        answer = self._ask(name, connection, request, [output, *keep], gave_up)
                    except ValueError:
                        self._end(name)  # another process has the address
                        continue
                    if "pid" in answer:
                        connection.sendall(b"g")
                        return int(answer["pid"])
                reason = str(answer.get("refused", "the warm process gave no reason"))
                if answer.get("lasting"):
                    self._remember(name, reason)
                if not answer.get("again"):
                    break
        except (OSError, ValueError) as error:
            return Refused(f"the warm process could not be used ({getattr(error, 'strerror', None) or error})")
        return Refused(reason)

    def show(self) -> list[dict[str, Any]]:
        """What is known of each warm process: `state` is `importing`, `ready` or `refused`."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            name = path.stem
            if known := self._known(name):
                with contextlib.suppress(OSError):  # it may end at any time
                    found.append({"name": name, **known, **self._progress(name, known)})
            elif not self._remembered(name):
                self._forget(name)
        for path in sorted(self.folder.glob("*.refused")):
            if reason := self._remembered(path.stem):
                found.append({"name": path.stem, "state": "refused", "why": reason})
        return found

    def stop(self, name: str | None = None) -> list[str]:
        """End the warm process called `name`, or all; their forks keep running. Returns the names of those ended."""
        names = {path.stem for kind in ("sock", "json", "refused") for path in self.folder.glob(f"*.{kind}")}
        stopped = sorted(names if name is None else names & {name})
        for each in stopped:
            self._end(each)
        return stopped

    def _progress(self, name: str, known: Mapping[str, Any]) -> dict[str, Any]:
        """How far a live process is, and what it uses. Raises OSError where it has ended."""
        age = {"age_seconds": round(time.time() - known["started_at"], 1)}
        memory = {"resident_bytes": process.resident_bytes(known["pid"])}
        if not self._is_ready(name):
            return {"state": "importing", **age, **memory}
        return {"state": "ready", **_as_mapping(self._path(name, "ready").read_bytes()), **age, **memory}

    # -- one process --------------------------------------------------------------------------------------------------

    def _connect_or_start(
        self, name: str, python: str, modules: Sequence[str], env: Mapping[str, str]
    ) -> socket.socket:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return self._connect(name)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(self.folder)
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once start one process, not two
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return self._connect(name)
            self._make_room()
            self._start(name, python, modules, env)
            return self._connect(name)
        finally:
            os.close(lock)

    def _connect(self, name: str) -> socket.socket:
        """A connection to a process of this user. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._address(name) as address:
                connection.settimeout(self.bounds.answer_seconds)
                connection.connect(address)
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.getuid():  # it would receive the environment, and start the ranks
                raise PermissionError(errno.EPERM, f"its socket belongs to user {uid}")
            return connection
        except BaseException:
            connection.close()
            raise

    @contextlib.contextmanager
    def _address(self, name: str) -> Iterator[str]:
        """A way to the socket that fits into the 107 bytes of a Unix address, however deep the home lies."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{name}.sock"
        finally:
            os.close(folder)

    def _start(self, name: str, python: str, modules: Sequence[str], env: Mapping[str, str]) -> None:
        self._end(name)
        path = self._path(name, "sock")
        bounds = {"idle_seconds": self.bounds.idle_seconds, "max_resident_bytes": self.bounds.resident_bytes}
        settings = {"socket": str(path), "modules": list(modules), **bounds}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with self._address(name) as address:
                listener.bind(address)
            path.chmod(0o600)
            listener.listen(64)
            words = [python, str(PROGRAM), str(listener.fileno()), json.dumps(settings), process.PADDING]
            log = os.open(self._path(name, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                popen = subprocess.Popen(
                    words, env=lasting(env), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, pass_fds=[listener.fileno()],
                )  # fmt: skip
            except BaseException:
                path.unlink()
                raise
            finally:
                os.close(log)
            popen.returncode = 0  # it outlives us; no code here waits for it
        born = process.stat(popen.pid)
        about = {
            "pid": popen.pid,
            "start_ticks": born.start_ticks if born else 0,
            "boot": process.boot_id(),
            "started_at": time.time(),
            "python": python,
            "modules": list(modules),
        }
        self._path(name, "json").write_text(json.dumps(about))

    def _ask(
        self, name: str, connection: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int],
        gave_up: Callable[[], bool],
    ) -> dict[str, Any]:  # fmt: skip
        """The answer to a request. Waits for a process that imports, and ends one that hangs.

        Raises OSError, ValueError.
        """
        connection.settimeout(LOOK_SECONDS)
        began = time.monotonic()
        answer = b""
        try:
            _send(connection, request, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return self._ended(name)
        while not answer.endswith(b"\n"):
            try:
                piece = connection.recv(65536)
            except TimeoutError:
                if gave_up():
                    return {"refused": "the run is to stop"}
                if self._is_importing(name):
                    began = time.monotonic()  # its time to answer begins when the imports are done
                if reason := self._why_not_wait(name, time.monotonic() - began):
                    return {"refused": reason}
                continue
            except ConnectionResetError:
                piece = b""
            if not piece:
                return self._ended(name)
            answer += piece
        return _as_mapping(answer)

    def _is_importing(self, name: str) -> bool:
        return self._known(name) is not None and not self._is_ready(name)

    def _why_not_wait(self, name: str, waited_seconds: float) -> str:
        known = self._known(name)
        if known is None or self._is_ready(name):
            if waited_seconds < self.bounds.answer_seconds:
                return ""
            self._end(name)
            return f"the warm process did not answer within {self.bounds.answer_seconds:g} s, and was ended"
        imports_for = time.time() - known["started_at"]
        if imports_for < self.bounds.import_seconds:
            return ""
        reason = f"the warm process did not finish its imports within {self.bounds.import_seconds:g} s"
        self._remember(name, reason)
        return reason

    def _ended(self, name: str) -> dict[str, Any]:
        """What it means that a process ended without an answer."""
        if self._is_ready(name):
            self._end(name)  # or another process has its address
            return {"refused": "the warm process was ended", "again": True}
        if not self._path(name, "json").exists():  # a person has stopped it
            return {"refused": "the warm process was ended while it imported"}
        ended_by = self._ended_by(name)
        # Its imports are to blame if they crashed it. One that was killed from outside, as where memory is short, or of
        # whose end nothing is known, may do better the next time.
        lasting = {"lasting": True} if ended_by is not None and ended_by not in KILLED_BY else {}
        return {"refused": "the warm process ended while it imported", **lasting}

    def _ended_by(self, name: str) -> int | None:
        """The exit code of a process that we have started, −N for signal N; None where another has, who alone knows."""
        try:
            pid = int(_as_mapping(self._path(name, "json").read_bytes())["pid"])
            give_up = time.monotonic() + self.bounds.answer_seconds
            while time.monotonic() < give_up:  # its sockets are closed a moment before it has ended
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                time.sleep(0.01)
        except (OSError, ValueError, KeyError):
            pass
        return None

    def _is_ready(self, name: str) -> bool:
        """Whether its imports are done."""
        return self._path(name, "ready").exists()

    def _known(self, name: str) -> dict[str, Any] | None:
        """What was written of a process; None where it does not live."""
        try:
            about = _as_mapping(self._path(name, "json").read_bytes())
            return about if process.is_same(about["pid"], about["start_ticks"], about["boot"]) else None
        except (OSError, ValueError, KeyError):
            return None

    def _end(self, name: str, *, keep_log: bool = False) -> None:
        """Kill it, if it is alive, and remove its files. It has no state to lose, and its forks keep running."""
        known = self._known(name)
        if known is not None:
            process.send(known["pid"], signal.SIGKILL)
        self._forget(name, keep_log=keep_log)

    def _forget(self, name: str, *, keep_log: bool = False) -> None:
        for kind in ("sock", "json", "ready", "refused", *(() if keep_log else ("log",))):
            with contextlib.suppress(IsADirectoryError, FileNotFoundError):
                self._path(name, kind).unlink()

    def _make_room(self) -> None:
        """Memory is bounded: the least recently used processes are ended for a new one."""
        lasts = {path.stem: path.lstat().st_mtime for path in self.folder.glob("*.sock")}
        used = sorted(lasts, key=lambda name: self._used_at(name, lasts[name]))
        for name in used[: max(0, len(used) - self.bounds.processes + 1)]:
            self._end(name)

    def _used_at(self, name: str, otherwise: float) -> float:
        try:
            return self._path(name, "ready").stat().st_mtime
        except FileNotFoundError:
            return otherwise

    # -- cached refusals -------------------------------------------------------------------------------

    def _remember(self, name: str, why: str) -> None:
        self._end(name, keep_log=True)
        self._path(name, "refused").write_text(why)

    def _remembered(self, name: str) -> str:
        path = self._path(name, "refused")
        try:
            if time.time() - path.stat().st_mtime < self.bounds.refused_seconds:
                return path.read_text()
            path.unlink()
        except FileNotFoundError:
            pass
        return ""

    def _path(self, name: str, kind: str) -> Path:
        return self.folder / f"{name}.{kind}"


def why_not(env: Mapping[str, str], platform: str = sys.platform) -> str:
    """Why nothing can be forked in this environment; empty where it can."""
    if platform != "linux":
        return "forking is only safe on Linux"
    for name in ("LD_PRELOAD", "LD_AUDIT", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        if env.get(name):
            return f"{name} is set"
    return ""


def _require_private(folder: Path) -> None:
    """Raises PermissionError where another user could enter, or where the folder is not what it seems."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{folder} is not a folder of this user's")
    if stat.S_IMODE(about.st_mode) & 0o077:
        folder.chmod(0o700)


def _digest(python: str, modules: Sequence[str], env: Mapping[str, str]) -> str:
    """Names the warm process that is equivalent to a new interpreter of this kind."""
    return name_of({
        "python": str(Path(python).absolute()),  # not resolved: an environment is known by the name of its interpreter
        "modules": list(modules),
        "env": lasting(env),
        "program": max(entry.stat().st_mtime_ns for entry in os.scandir(PROGRAM.parent) if entry.name.endswith(".py")),
        **process_fingerprint(),
    })  # fmt: skip


def _send(connection: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Send a request as a line of JSON. Raises OSError."""
    data = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [data], list(descriptors))
    if sent < len(data):  # even an empty send fails where the other side has answered and closed already
        connection.sendall(data[sent:])


def _as_mapping(data: bytes) -> dict[str, Any]:
    result = json.loads(data)
    if not isinstance(result, dict):
        raise ValueError("not what a warm process says")
    return result
