"""Emulated EC2 metadata service on loopback, which responds only to requests with a valid token."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INTERRUPTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Service:
    """Documents of the service, and the requests that it has received."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.documents: dict[str, Any] = {}
        """JSON documents by path."""
        self.tokens: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        """Method and path of each request, and its response status."""

    def say(self, path: str, **document: str) -> None:
        self.documents = {**self.documents, path: document}

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, bytes]:
        if method == "PUT":
            if path != "/latest/api/token" or not headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return 400, b""
            token = secrets.token_urlsafe(16)
            self.tokens.add(token)
            return 200, token.encode()
        if headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return 401, b"unauthorized"
        if path not in self.documents:
            return 404, b"<html>not found</html>"
        return 200, json.dumps(self.documents[path]).encode()


@contextmanager
def metadata_service() -> Iterator[Service]:
    """Runs the service while the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def _answer(self, method: str) -> None:
            status, body = service.answer(method, self.path, self.headers)
            service.asked.append((f"{method} {self.path}", status))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service = Service(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
