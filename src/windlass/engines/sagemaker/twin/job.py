"""The folder of a job: its request, its description so far, and what is asked of its manager.

request.json    body of CreateTrainingJob
settings.json   what the twin has decided at the creation (`Settings`)
state.json      all of the description that is not in the request; only who has the lock writes it
lock            held by the manager as long as it lives
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
"""Files that request something of the manager."""
NAME: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
"""Of a training job."""
NAMESPACES, FOLDERS = "namespaces", "folders"
"""How hosts are isolated."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the manager of a job needs beside the request."""

    isolation: str
    """`NAMESPACES`, or `FOLDERS`: /opt/ml is then the folder that SAGEMAKER_BASE_DIR names."""
    why: str
    """The reason for FOLDERS."""
    grace_seconds: float
    """Between SIGTERM and SIGKILL."""
    python: str
    """Interpreter whose folder is the first of the container's PATH."""
    created: float
    """Unix seconds."""


class JobFolder:
    """One job below the folder of all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @property
    def arn(self) -> str:
        """Amazon Resource Name of the job, of an account that cannot exist."""
        return f"arn:aws:sagemaker:local:000000000000:training-job/{self.name}"

    @property
    def logs(self) -> Path:
        """Folder of the log streams."""
        return self.path / "logs"

    def host(self, start: int, name: str) -> Path:
        """Folder of a host in one start."""
        return self.path / "starts" / str(start) / name

    def exists(self) -> bool:
        """Whether there is such a job."""
        return (self.path / REQUEST).exists()

    def request(self) -> dict[str, Any]:
        """The body of CreateTrainingJob."""
        return self._read(REQUEST)

    def settings(self) -> Settings:
        """See `Settings`."""
        return Settings(**self._read(SETTINGS))

    def state(self) -> dict[str, Any]:
        """The description so far, without the fields of the request; empty before the manager has begun."""
        return self._read(STATE) if (self.path / STATE).exists() else {}

    def write_state(self, state: dict[str, Any]) -> None:
        """Write the description. Under the lock. Raises OSError."""
        write_whole(self.path / STATE, json.dumps(state).encode())

    def make(self, request: dict[str, Any], settings: Settings) -> None:
        """Write a new folder. Raises OSError."""
        self.path.mkdir(mode=0o700)
        self.logs.mkdir()
        for name, value in ((REQUEST, request), (SETTINGS, asdict(settings))):
            write_whole(self.path / name, json.dumps(value).encode())

    def mark(self, name: str) -> None:
        """Request something of the manager; several processes may do so at once. Raises OSError."""
        (self.path / name).touch()

    def is_marked(self, name: str) -> bool:
        """Whether that was requested."""
        return (self.path / name).exists()

    def unmark(self, name: str) -> None:
        """The manager has done it."""
        (self.path / name).unlink(missing_ok=True)

    def lock(self, *, waits: bool = False) -> int | None:
        """Descriptor of the lock; where another process has it, it `waits` or gives None. Raises OSError."""
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
    """Errors of the system as those of the engine."""
    try:
        yield
    except OSError as error:
        raise EngineError(f"{what}: {error.strerror or error}", "is there space, and is the folder yours?") from error
    except ValueError as error:
        raise EngineError(f"{what}: a file of the job is damaged: {error}") from error
