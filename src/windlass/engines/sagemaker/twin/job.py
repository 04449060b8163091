"""Folder of a job: its request, its current description, and requests to its manager.

request.json    body of CreateTrainingJob
settings.json   settings chosen at the creation (`Settings`)
state.json      fields of the description that are not in the request; only the process with the lock writes it
lock            locked by the manager while it runs
stop, interrupt requests to the manager
starts/1/algo-1 the folder of a host in its first start, with its `opt/ml`
logs            a file for each log stream
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from windlass.errors import EngineError
from windlass.storage.files import write_whole

REQUEST, SETTINGS, STATE, LOCK = "request.json", "settings.json", "state.json", "lock"
STOP, INTERRUPT = "stop", "interrupt"
"""Files that request an action of the manager."""
NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
"""Pattern of training job names."""
NAMESPACES, FOLDERS = "namespaces", "folders"
"""Kinds of isolation between hosts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a job's manager that are not in the request."""

    isolation: str
    """`NAMESPACES`, or `FOLDERS`: SAGEMAKER_BASE_DIR then names the folder to use in place of /opt/ml."""
    why: str
    """Why the host has no namespaces, with FOLDERS."""
    grace_seconds: float
    """Seconds between SIGTERM and SIGKILL."""
    python: str
    """Interpreter whose folder comes first in the container's PATH."""
    created: float
    """Creation time in Unix seconds."""


class JobFolder:
    """The folder of one emulated training job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @property
    def arn(self) -> str:
        """Amazon Resource Name of the job, with an account number that cannot exist."""
        return f"arn:aws:sagemaker:local:000000000000:training-job/{self.name}"

    @property
    def logs(self) -> Path:
        """Folder of the log streams."""
        return self.path / "logs"

    def host(self, start: int, name: str) -> Path:
        """Returns the folder of a host in one start."""
        return self.path / "starts" / str(start) / name

    def exists(self) -> bool:
        """Whether the job exists."""
        return (self.path / REQUEST).exists()

    def request(self) -> dict[str, Any]:
        """Returns the body of CreateTrainingJob."""
        return self._read(REQUEST)

    def settings(self) -> Settings:
        """Reads the settings of the job."""
        return Settings(**self._read(SETTINGS))

    def state(self) -> dict[str, Any]:
        """Reads the current description without the fields of the request; empty before the manager has begun."""
        return self._read(STATE) if (self.path / STATE).exists() else {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Writes the description; the caller must have the lock. Raises OSError."""
        write_whole(self.path / STATE, json.dumps(state).encode())

    def make(self, request: dict[str, Any], settings: Settings) -> None:
        """Creates the folder. Raises OSError."""
        self.path.mkdir(mode=0o700)
        self.logs.mkdir()
        for name, value in ((REQUEST, request), (SETTINGS, asdict(settings))):
            write_whole(self.path / name, json.dumps(value).encode())

    def mark(self, name: str) -> None:
        """Requests an action of the manager; several processes may do so at once. Raises OSError."""
        (self.path / name).touch()

    def is_marked(self, name: str) -> bool:
        """Whether the action was requested."""
        return (self.path / name).exists()

    def unmark(self, name: str) -> None:
        """Removes the request after the manager has carried it out."""
        (self.path / name).unlink(missing_ok=True)

    def lock(self, *, waits: bool = False) -> int | None:
        """Locks the job and returns the descriptor. If another process has the lock, `waits` for it or returns None.

        Raises OSError.
        """
        found = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(found)
            return None
        return found

    def _read(self, name: str) -> dict[str, Any]:
        with (self.path / name).open("rb") as file:
            found: dict[str, Any] = json.load(file)
        return found


@contextmanager
def system_errors(what: str) -> Iterator[None]:
    """Converts OSError to EngineError."""
    try:
        yield
    except OSError as error:
        raise EngineError(f"{what}: {error.strerror or error}", "is there space, and is the folder yours?") from error
    except ValueError as error:
        raise EngineError(f"{what}: a file of the job is damaged: {error}") from error
