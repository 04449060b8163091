"""Receives boto3 calls for an emulated account: JSON, the query protocol of STS and IAM, and REST."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakeaws.account import of_form, to_xml

SERVICES: Final = {
    "SageMaker": "sagemaker",
    "Logs_20140328": "logs",
    "ServiceQuotasV20190624": "service-quotas",
    "AmazonEC2ContainerRegistry_V20150921": "ecr",
    "secretsmanager": "secretsmanager",
    "GraniteServiceVersion20100801": "cloudwatch",
}
"""Services by the first part of the header that names an operation."""
ENDPOINT: Final = re.compile(r"/endpoints/([^/]+)/invocations")
VERBS: Final = {"POST": "Create", "GET": "Get", "PUT": "Update", "DELETE": "Delete"}
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

    def invoke(self, endpoint: str, body: bytes, content_type: str, accept: str) -> tuple[int, str, bytes]:
        """Returns status, content type and body of InvokeEndpoint. Raises AwsError."""


class Handler(BaseHTTPRequestHandler):
    """HTTP handler; a subclass sets the control plane that it serves."""

    plane: Answers
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Suppresses request logs; tests read `calls` instead."""

    def do_POST(self) -> None:
        """Handles one call."""
        target = self.headers.get("X-Amz-Target", "")
        if not target and self.path != "/":
            self._rest()
            return
        data = self._body()
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

    def do_GET(self) -> None:
        """Handles one call of EventBridge Scheduler, whose operations are paths."""
        self._rest()

    def do_PUT(self) -> None:
        """Handles one call."""
        self._rest()

    def do_DELETE(self) -> None:
        """Handles one call."""
        self._rest()

    def _rest(self) -> None:
        data, url = self._body(), urlsplit(self.path)
        try:
            if found := ENDPOINT.fullmatch(url.path):
                kind, accept = self.headers.get("Content-Type", ""), self.headers.get("Accept", "")
                status, kind, answer = self.plane.invoke(found[1], data, kind, accept)
                if status == 200:
                    self._send(200, kind, answer)
                else:
                    said = {"OriginalStatusCode": status, "OriginalMessage": answer.decode(), "Message": "from model"}
                    self._refuse(AwsError("ModelError", "", 424), said)
            else:
                query = {name: one for name, [one] in parse_qs(url.query).items() if name != "clientToken"}
                name = unquote(url.path.removeprefix("/schedules").strip("/"))
                operation = f"{VERBS[self.command]}Schedule" if name else "ListSchedules"
                body = {**json.loads(data or b"{}"), **query, **({"Name": name} if name else {})}
                self._send(
                    200, "application/json", json.dumps(self.plane.answer("scheduler", operation, body)).encode()
                )
        except AwsError as error:
            self._refuse(error, {"message": error.message, "Message": error.message})

    def _refuse(self, error: AwsError, said: Mapping[str, Any]) -> None:
        self._send(error.status, "application/json", json.dumps(said).encode(), {"x-amzn-errortype": error.code})

    def _body(self) -> bytes:
        """Returns the body of the request, which botocore may send in chunks."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _queried(self, form: Mapping[str, list[str]]) -> bytes:
        operation = form["Action"][0]
        service = "sts" if operation == "GetCallerIdentity" else "iam"
        xml = to_xml(self.plane.answer(service, operation, of_form(form)))
        return f"<{operation}Response><{operation}Result>{xml}</{operation}Result></{operation}Response>".encode()

    def _send(self, status: int, kind: str, data: bytes, fields: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
