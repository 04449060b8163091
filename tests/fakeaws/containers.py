"""Containers of emulated endpoints (not AWS): the model server on this machine in place of an image's `serve`."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.helpers.until import until


class LocalContainer:
    """A process that serves the archive of a model."""

    def __init__(self, model: Mapping[str, Any], folder: Path, s3: Any) -> None:
        container = model["PrimaryContainer"]
        bucket, _, key = container["ModelDataUrl"].removeprefix("s3://").partition("/")
        self._folder = folder / str(model["ModelName"])
        (self._folder / "model").mkdir(parents=True)
        archive = self._folder / "model.tar.gz"
        s3.download_file(bucket, key, str(archive))
        with tarfile.open(archive) as tar:
            tar.extractall(self._folder / "model", filter="data")
        self._ready, self._log = self._folder / "ready.json", self._folder / "log"
        with self._log.open("wb") as log:
            words = [sys.executable, "-m", "windlass.serving", str(self._folder / "model"), "--port", "0"]
            self._process = subprocess.Popen([*words, "--ready-file", str(self._ready)], stdout=log, stderr=log)
        until(lambda: self.has_ended() or self.is_healthy())  # the emulated clock does not know how long that takes

    def log_lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def is_healthy(self) -> bool:
        try:
            return self._request("GET", "/ping", b"", {})[0] == 200
        except (OSError, ValueError):
            return False

    def invoke(self, body: bytes, content_type: str, accept: str) -> tuple[int, str, bytes]:
        return self._request("POST", "/invocations", body, {"Content-Type": content_type, "Accept": accept})

    def _request(self, method: str, path: str, body: bytes, fields: Mapping[str, str]) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", json.loads(self._ready.read_bytes())["port"], timeout=10)
        try:
            connection.request(method, path, body or None, dict(fields))
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
