"""A model server as a process of its own, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.until import until

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


@dataclass
class ModelServer:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            found = connection.getresponse()
            return Reply(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())

    def invoke(self, value: Any, headers: Mapping[str, str] = JSON) -> Reply:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return self.ask("POST", "/invocations", body, headers)

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers."""
        return [
            int(word) for word in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]


def write_model(folder: Path, code: str, name: str = "predict.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(code)
    return folder


@contextlib.contextmanager
def serving(
    model: Path,
    tmp_path: Path,
    *options: str,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    is_loaded: bool = True,
) -> Iterator[ModelServer]:
    """A server on a free port that has loaded its model; it is killed at the end if the test has not ended it."""
    ready, log = tmp_path / "ready.json", tmp_path / "server.log"
    command = [python, "-m", "windlass.serving", str(model), "--port=0", f"--ready-file={ready}", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(environment or {})})
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        server = ModelServer(process, json.loads(ready.read_text())["port"], log)
        if is_loaded:
            until(lambda: process.poll() is not None or server.ask("GET", "/ping").status == 200)
            assert process.poll() is None, log.read_text()
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
