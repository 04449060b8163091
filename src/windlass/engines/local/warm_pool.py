"""Finds, starts and uses the warm processes of this user: one for each interpreter and list of modules.

Files in the folder `warm/` of the home, by the name of the process:

| file | content |
|---|---|
| `NAME.sock` | the socket, bound before the first import |
| `NAME.json` | pid and identity of the process, its modules, its start time |
| `NAME.ready` | imported modules with their import time, and the number of forks; modified at each fork |
| `NAME.log` | output of the imports |
| `NAME.refused` | why such a process could not be used, so that the next run does not try again |
| `LIST.tried` | for an interpreter and a list of modules: which of them are safe to import before a fork |
| `off` | exists while warm starts are turned off |
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.engines.local.warm_client import PROGRAM, Bounds, WarmClient, is_alive
from windlass.runs.store import locked
from windlass.worker import import_ahead, warm_server
from windlass.worker.environ_watch import lasting
from windlass.worker.fork_reset import inheritance
from windlass.worker.process_fingerprint import name_of, process_fingerprint

DEFAULT_BOUNDS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason why no process could be forked."""

    why: str


class WarmPool:
    """The warm processes of one home, whose folder and sockets only the user can access."""

    def __init__(self, home: Path, bounds: Bounds = DEFAULT_BOUNDS) -> None:
        self.folder = home / "warm"
        self.bounds = bounds

    def fork(
        self,
        *,
        python: str,
        modules: Sequence[str],
        script: str,
        spec: Path,
        env: Mapping[str, str],
        output: int,
        keep: Sequence[int],
        gave_up: Callable[[], bool] = lambda: False,
    ) -> int | Refused:
        """Forks a node worker for the node spec at `spec`. Returns its pid, or why the worker must be started cold.

        `env` is the environment that all ranks of the node share. The worker writes its output to `output`, inherits
        the descriptors in `keep`, and writes a byte to the first descriptor for each event. `gave_up` reports whether
        the run was abandoned.
        """
        if reason := why_not(env):
            return Refused(reason)
        client = self._client(_digest(python, modules, env))
        request = {"spec": str(spec), "script": script, "env": lasting(env), "inherit": inheritance()}
        nothing_is_known = not (import_ahead.SURE.intersection(modules) or self.tried(python, modules).exists())
        reason = "no warm process could be reached"
        try:
            for _ in range(3):  # each try replaces an outdated or ending process
                if refusal := client.refusal():
                    return Refused(refusal)
                with self._connect_or_start(client, python, modules, env) as connection:
                    if nothing_is_known and not client.is_ready():
                        return Refused(warm_server.TRIES)
                    try:
                        answer = client.ask(connection, request, [output, *keep], gave_up)
                    except ValueError:
                        client.end()  # an invalid answer comes from another process at this address
                        continue
                    if "pid" in answer:
                        connection.sendall(b"g")
                        self._make_room(client)
                        return int(answer["pid"])
                reason = str(answer.get("refused", "the warm process gave no reason"))
                if answer.get("lasting"):
                    client.end_and_refuse(reason)
                if not answer.get("again"):
                    break
        except (OSError, ValueError) as error:
            return Refused(f"the warm process could not be used ({getattr(error, 'strerror', None) or error})")
        return Refused(reason)

    def show(self) -> list[dict[str, Any]]:
        """Lists the warm processes; `state` is `importing`, `ready` or `refused`."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            client = self._client(path.stem)
            if (written := client.written()) is None:
                continue  # another call is starting a process of this name, which needs the socket
            if is_alive(written):
                with contextlib.suppress(OSError):
                    found.append({"name": client.name, **written, **client.progress(written)})
            elif not client.refusal():
                client.remove_files()
        for path in sorted(self.folder.glob("*.refused")):
            if reason := self._client(path.stem).refusal():
                found.append({"name": path.stem, "state": "refused", "why": reason})
        return found

    def kept(self) -> tuple[int, int]:
        """Returns the number of processes and the bytes of memory that they use."""
        sizes = [size for path in self.folder.glob("*.sock") if (size := self._client(path.stem).size())]
        return len(sizes), sum(sizes)

    def stop(self, name: str | None = None) -> list[str]:
        """Ends the warm process called `name`, or all, and deletes the results of trials; forks keep running.

        Returns the names of the ended processes.
        """
        names = {path.stem for kind in ("sock", "json", "refused") for path in self.folder.glob(f"*.{kind}")}
        stopped = sorted(names if name is None else names & {name})
        for each in stopped:
            self._client(each).end()
        for path in self.folder.glob("*.tried") if name is None else ():
            path.unlink(missing_ok=True)
        return stopped

    def tried(self, python: str, modules: Sequence[str]) -> Path:
        """Returns the file that lists which of these modules this interpreter can import before a fork."""
        name = name_of({"python": str(Path(python).absolute()), "modules": list(modules)})
        return self.folder / f"{name}.tried"

    @property
    def is_off(self) -> bool:
        """Whether the user has turned warm starts off."""
        return (self.folder / "off").exists()

    def switch(self, *, on: bool) -> None:
        """Turns warm starts on, or off, which ends all processes. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if on:
            (self.folder / "off").unlink(missing_ok=True)
        else:
            (self.folder / "off").touch(mode=0o600)
            self.stop()

    def _client(self, name: str) -> WarmClient:
        return WarmClient(self.folder, name, self.bounds)

    def _connect_or_start(
        self, client: WarmClient, python: str, modules: Sequence[str], env: Mapping[str, str]
    ) -> socket.socket:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return client.connect()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(self.folder)
        with locked(self.folder / "lock"):  # the lock makes concurrent runs start only one process
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return client.connect()
            self._make_room(client, self.bounds.processes - 1)
            client.start(python, modules, env, self.tried(python, modules))
            return client.connect()

    def _make_room(self, kept: WarmClient, processes: int | None = None) -> None:
        """Ends the least recently used processes except `kept`, until the limits on number and memory are met."""
        lasts = {path.stem: path.lstat().st_mtime for path in self.folder.glob("*.sock") if path.stem != kept.name}
        used = sorted(map(self._client, lasts), key=lambda each: each.used_at(lasts[each.name]))
        sizes = {each.name: each.size() for each in (*used, kept)}
        most = self.bounds.most_resident_bytes
        while used and ((processes is not None and len(used) > processes) or sum(sizes.values()) > most):
            oldest = used.pop(0)
            oldest.end()
            del sizes[oldest.name]


def why_not(env: Mapping[str, str], platform: str = sys.platform) -> str:
    """Returns why forking is unsafe in this environment, or ""."""
    if platform != "linux":
        return "forking is only safe on Linux"
    for name in ("LD_PRELOAD", "LD_AUDIT", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        if env.get(name):
            return f"{name} is set"
    return ""


def _require_private(folder: Path) -> None:
    """Makes the folder private. Raises PermissionError if it is a link, or belongs to another user."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{folder} is not a folder of this user's")
    if stat.S_IMODE(about.st_mode) & 0o077:
        folder.chmod(0o700)


def _digest(python: str, modules: Sequence[str], env: Mapping[str, str]) -> str:
    """Returns the name of the warm process for these values. The process itself checks whether it can serve `env`."""
    return name_of(
        {
            # Links are not resolved, because the path itself selects an environment.
            "python": str(Path(python).absolute()),
            "modules": list(modules),
            # The thread count is part of the name, because users often change the number of ranks.
            "threads": env.get("OMP_NUM_THREADS"),
            "program": max(
                entry.stat().st_mtime_ns for entry in os.scandir(PROGRAM.parent) if entry.name.endswith(".py")
            ),
            **process_fingerprint(),
        }
    )
