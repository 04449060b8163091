"""Polls the metadata service of an EC2 instance for preemption notices, and prints each as a line of JSON.

The poller is a separate process: an unresponsive metadata service must not block the node, and a node must not have
threads, because it forks ranks. The protocol is IMDSv2: a token is fetched by PUT and sent with each request. Status
404 means that there is no notice, 401 that the token has expired.

    python -I -S preemption_notice.py '{"endpoint": "http://169.254.169.254", "poll_seconds": 5, "known": []}'
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

TOKEN_PATH = "/latest/api/token"
TOKEN_SECONDS = 21600
INTERRUPTION = "/latest/meta-data/spot/instance-action"
"""Path of the interruption notice, which EC2 gives two minutes ahead. Example of a notice: `{"action": "terminate",
"time": "2026-09-18T08:22:00Z"}`."""
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
"""Path of the rebalance recommendation, which EC2 gives at a higher risk of interruption. Example: `{"noticeTime":
"2026-09-18T08:22:00Z"}`."""
TIMEOUT_SECONDS = 1.0
MAX_BYTES = 65536
INTERRUPTIONS = ("terminate", "stop", "hibernate")


class Metadata:
    """Client of the metadata service of this machine."""

    def __init__(self, endpoint: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host = parts.hostname or "169.254.169.254"
        self._port = parts.port
        self._base = parts.path.rstrip("/")
        self._timeout = timeout_seconds
        self._token: str | None = None

    def get(self, path: str) -> Any:
        """Returns the JSON data at a path; None if the path does not exist or the service does not respond."""
        for _ in range(2):
            if self._token is None:
                self._token = self._fetch_token()
            if self._token is None:
                return None
            status, body = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 401:
                self._token = None  # the token has expired, or the service was restarted
                continue
            return _json(body) if status == 200 else None
        return None

    def _fetch_token(self) -> str | None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        status, body = self._ask("PUT", TOKEN_PATH, headers)
        return body.decode("ascii", "replace").strip() if status == 200 and body else None

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = self._connect(self._host, self._port, timeout=self._timeout)
        try:
            connection.request(method, self._base + path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_BYTES)
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


def notices(metadata: Metadata) -> Iterator[dict[str, str]]:
    """Yields the current notices, each with `action` (`terminate`, `stop` or `rebalance`) and `time`."""
    found = metadata.get(INTERRUPTION)
    if isinstance(found, dict) and found.get("action") in INTERRUPTIONS:
        action = "terminate" if found["action"] == "terminate" else "stop"
        yield {"source": "imds", "action": action, "time": str(found.get("time", ""))}
    found = metadata.get(REBALANCE)
    if isinstance(found, dict) and "noticeTime" in found:
        yield {"source": "imds", "action": "rebalance", "time": str(found["noticeTime"])}


def watch(spec: dict[str, Any], output: int, parent: int) -> None:
    """Prints each notice once, except the notices in `known`, until the parent process ends. `spec` has `endpoint`,
    `poll_seconds` and `known` (action and time of each).
    """
    metadata = Metadata(spec["endpoint"])
    reported = {(str(action), str(when)) for action, when in spec.get("known", ())}
    while os.getppid() == parent:
        for notice in notices(metadata):
            if (notice["action"], notice["time"]) not in reported:
                reported.add((notice["action"], notice["time"]))
                try:
                    os.write(output, json.dumps(notice).encode() + b"\n")
                except OSError:
                    return
        time.sleep(spec["poll_seconds"])


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):  # notices may still arrive while the machine shuts down
        signal.signal(number, signal.SIG_IGN)
    watch(json.loads(sys.argv[1]), 1, os.getppid())
