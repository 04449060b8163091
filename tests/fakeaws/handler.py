"""Receives boto3 calls for an emulated account: the JSON protocol, and the query protocol of STS and IAM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from tests.fakeaws.account import of_form, to_xml

SERVICES: Final = {
    "SageMaker": "sagemaker",
    "Logs_20140328": "logs",
    "ServiceQuotasV20190624": "service-quotas",
    "AmazonEC2ContainerRegistry_V20150921": "ecr",
    "secretsmanager": "secretsmanager",
}
"""Services by the first part of the header that names an operation."""
JSON: Final = "application/x-amz-json-1.1"


class AwsError(Exception):
    """An AWS error response."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class Answers(Protocol):
    """Implementation of the emulated services."""

    def answer(self, service: str, operation: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the response of a call. Raises AwsError."""


class Handler(BaseHTTPRequestHandler):
    """HTTP handler; a subclass sets the control plane that it serves."""

    plane: Answers
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Suppresses request logs; tests read `calls` instead."""

    def do_POST(self) -> None:
        """Handles one call."""
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        target = self.headers.get("X-Amz-Target", "")
        try:
            if target:
                service = SERVICES[target.partition(".")[0]]
                body = json.loads(data or b"{}")
                found = self.plane.answer(service, target.rpartition(".")[2], body)
                self._send(200, JSON, json.dumps(found).encode())
            else:
                self._send(200, "text/xml", self._queried(parse_qs(data.decode())))
        except AwsError as error:
            if target:
                words = {"__type": error.code, "message": error.message}
                self._send(error.status, JSON, json.dumps(words).encode())
            else:
                xml = f"<ErrorResponse><Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>"
                self._send(error.status, "text/xml", f"{xml}</ErrorResponse>".encode())

    def _queried(self, form: Mapping[str, list[str]]) -> bytes:
        operation = form["Action"][0]
        service = "sts" if operation == "GetCallerIdentity" else "iam"
        xml = to_xml(self.plane.answer(service, operation, of_form(form)))
        return f"<{operation}Response><{operation}Result>{xml}</{operation}Result></{operation}Response>".encode()

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
