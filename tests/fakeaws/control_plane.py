"""An emulated control plane of SageMaker, its logs, and what an account says of itself, over HTTP for boto3. Not AWS.

Requests and answers are checked by botocore's own model of each service. Training jobs run in the hosts of
`sagemaker-local`; what the cloud adds to them (capacity, quotas, throttling, logs that lag, logins that expire) is
told to it by a test.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

from botocore.session import Session
from botocore.validate import ParamValidator
from tests.fakeaws.account import Account, NotThere, of_form, to_xml

from windlass.engines.sagemaker.service import Refused
from windlass.engines.sagemaker.twin.service import FOLDER, Twin

ACCOUNT: Final = "123456789012"
REGION: Final = "us-east-1"
GROUP: Final = "/aws/sagemaker/TrainingJobs"
ENDPOINTS: Final = (
    "AWS_ENDPOINT_URL_SAGEMAKER", "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_IAM",
    "AWS_ENDPOINT_URL_SERVICE_QUOTAS", "AWS_ENDPOINT_URL_ECR",
)  # fmt: skip
SERVICES: Final = {
    "SageMaker": "sagemaker", "Logs_20140328": "logs", "ServiceQuotasV20190624": "service-quotas",
    "AmazonEC2ContainerRegistry_V20150921": "ecr", "secretsmanager": "secretsmanager",
}  # fmt: skip
"""By the first part of the header that names an operation."""
CAPACITY: Final = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)
JSON: Final = "application/x-amz-json-1.1"


class AwsError(Exception):
    """An error as AWS answers it."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class ControlPlane:
    """The services of one account; listens on loopback from `start` to `stop`, and keeps its jobs between them."""

    def __init__(self, home: Path, environ: Mapping[str, str], **twin: Any) -> None:
        """Jobs are kept below `home`; containers get what `environ` says of S3."""
        self._home = home
        self.account = Account(ACCOUNT)
        self._environ, self._options = environ, twin
        self.twin = Twin(home, environ, **twin)
        self.calls: Counter[str] = Counter()
        """By operation."""
        self.errors: dict[str, deque[AwsError]] = {}
        """By operation, what its next calls are answered with."""
        self.is_login_expired = False
        self.has_logs = True
        """Whether what hosts have written has arrived in the logs; else no line that is new has."""
        self.never_started: dict[str, dict[str, Any]] = {}
        """Jobs that have failed before any container was started, by name."""
        self.tags: dict[str, list[dict[str, str]]] = {}
        """Of each training job, which its description lacks."""
        self.fails_with = ""
        """The `FailureReason` with which jobs fail before a container is started; empty where they do not."""
        self.on_call: Callable[[str], object] = lambda operation: None
        """Called with each operation before it is carried out."""
        self.on_answer: Callable[[str], object] = lambda operation: None
        """Called with each operation before it is answered."""
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    def start(self) -> None:
        """Listen, at the same port as before."""
        handler = type("Handler", (_Handler,), {"plane": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        own = {"AWS_ENDPOINT_URL_SECRETS_MANAGER": f"http://127.0.0.1:{self._port}"}
        self.twin = Twin(self._home, {**self._environ, **own}, **self._options)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Answer nothing more; jobs go on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def environ(self) -> dict[str, str]:
        """How boto3 finds it."""
        url = f"http://127.0.0.1:{self._port}"
        return {**dict.fromkeys(ENDPOINTS, url), "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}

    def refuse(self, operation: str, code: str, message: str, times: int = 1, status: int = 400) -> None:
        """Answer the next calls of an operation with an error."""
        self.errors.setdefault(operation, deque()).extend(AwsError(code, message, status) for _ in range(times))

    def jobs(self) -> list[str]:
        """The names of all training jobs."""
        return sorted([*self.never_started, *(path.name for path in (self._home / FOLDER).glob("[!.]*"))])

    def answer(self, service: str, operation: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a call. Raises AwsError."""
        self.calls[operation] += 1
        self.on_call(operation)
        if self.is_login_expired:
            raise AwsError("ExpiredTokenException", "The security token included in the request is expired")
        if self.errors.get(operation):
            raise self.errors[operation].popleft()
        carry_out = getattr(self, f"_{operation}", None) or getattr(self.account, f"_{operation}", None)
        if carry_out is None:
            raise AwsError("UnknownOperationException", operation)
        if wrong := _problems(service, operation, "input_shape", body):
            raise AwsError("ValidationException", wrong)
        try:
            self.account.require(service, operation, body, REGION)
            found: dict[str, Any] = carry_out(body)
        except Refused as error:
            raise AwsError(error.code, error.message) from error
        except NotThere as error:
            raise AwsError(*error.args) from error
        shape = _operation(service, operation).output_shape
        found = {name: value for name, value in found.items() if shape is not None and name in shape.members}
        wrong = _problems(service, operation, "output_shape", _timed(found))
        assert not wrong, wrong
        self.on_answer(operation)
        return found

    # -- SageMaker ----------------------------------------------------------------------------------------------------

    def _CreateTrainingJob(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["TrainingJobName"]
        arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"
        self.tags.setdefault(name, body.get("Tags", []))
        if name in self.never_started:
            raise AwsError("ResourceInUse", f"training job {name} exists")
        if not self.fails_with:
            self.twin.create(body)
        else:
            now = time.time()
            steps = [("Starting", "Preparing the instances for training"), ("Failed", self.fails_with)]
            self.never_started[name] = {
                **body, "TrainingJobArn": arn, "TrainingJobStatus": "Failed", "SecondaryStatus": "Failed",
                "FailureReason": self.fails_with, "CreationTime": now, "LastModifiedTime": now, "TrainingEndTime": now,
                "SecondaryStatusTransitions": [
                    {"Status": status, "StartTime": now, "StatusMessage": text} for status, text in steps
                ],
            }  # fmt: skip
        return {"TrainingJobArn": arn}

    def _DescribeTrainingJob(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["TrainingJobName"]
        found = dict(self.never_started.get(name) or self.twin.describe(name))
        path = f"{found['OutputDataConfig']['S3OutputPath']}/{name}/output/model.tar.gz"
        arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"
        # The model of the service requires the artifacts, also where there are none yet.
        return {"ModelArtifacts": {"S3ModelArtifacts": path}, **found, "TrainingJobArn": arn}

    def _StopTrainingJob(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.twin.stop(body["TrainingJobName"])
        return {}

    def _Search(self, body: Mapping[str, Any]) -> dict[str, Any]:
        [wanted] = body["SearchExpression"]["Filters"]
        tag, found = wanted["Name"].removeprefix("Tags."), []
        for name in self.jobs():
            job = self._DescribeTrainingJob({"TrainingJobName": name})
            tags = {one["Key"]: one["Value"] for one in self.tags.get(name, [])}
            if tag in tags and wanted.get("Value", tags[tag]) == tags[tag]:
                shape = _operation("sagemaker", "Search").output_shape.members["Results"].member.members["TrainingJob"]
                kept = {field: value for field, value in job.items() if field in shape.members}
                found.append({"TrainingJob": {**kept, "Tags": self.tags[name]}})
        return {"Results": found}

    # -- CloudWatch Logs ----------------------------------------------------------------------------------------------

    def _DescribeLogStreams(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._require_group(body)
        name, _, _ = body.get("logStreamNamePrefix", "").partition("/")
        if name in self.never_started:
            return {"logStreams": []}
        return {"logStreams": [{"logStreamName": one} for one in self.twin.log_streams(name)]}

    def _GetLogEvents(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._require_group(body)
        token = body.get("nextToken", "")
        if not self.has_logs:
            return {"events": [], "nextForwardToken": token or "f/0", "nextBackwardToken": "b/0"}
        since, offset = body.get("startTime", 0), token.removeprefix("f/") or None
        page = self.twin.read_log(body["logStreamName"], since=since, token=offset)
        now = int(time.time() * 1000)
        events = [{"timestamp": at, "message": text, "ingestionTime": now} for at, text in page.lines]
        return {"events": events, "nextForwardToken": f"f/{page.token}", "nextBackwardToken": "b/0"}

    def _require_group(self, body: Mapping[str, Any]) -> None:
        if body["logGroupName"] != GROUP:
            raise AwsError("ResourceNotFoundException", "The specified log group does not exist.")

    # -- STS ----------------------------------------------------------------------------------------------------------

    def _GetCallerIdentity(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"UserId": "AIDA", "Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/ada"}


class _Handler(BaseHTTPRequestHandler):
    plane: ControlPlane
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Tests read what was asked from `calls`."""

    def do_POST(self) -> None:
        """One call of an operation."""
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


@functools.cache
def _operation(service: str, name: str) -> Any:
    return Session().get_service_model(service).operation_model(name)


def _problems(service: str, operation: str, side: str, body: Mapping[str, Any]) -> str:
    """What the model refuses; empty for nothing."""
    shape = getattr(_operation(service, operation), side)
    return "" if shape is None else str(ParamValidator().validate(dict(body), shape).generate_report())


def _timed(value: Any, name: str = "") -> Any:
    """Times as the model has them: numbers stand for them on the wire."""
    if isinstance(value, Mapping):
        return {key: _timed(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_timed(one) for one in value]
    if name == "CreateDate":
        return datetime.fromisoformat(value)
    return datetime.fromtimestamp(value, UTC) if name.endswith("Time") and isinstance(value, float) else value
