"""An emulated SageMaker control plane with logs and account services, over HTTP for boto3. Not AWS.

Requests and responses are validated with botocore's service models. Training jobs run in the hosts of
`sagemaker-local`. Tests set the conditions that AWS adds: capacity, quotas, throttling, delayed logs, expired
credentials.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from botocore.session import Session
from botocore.validate import ParamValidator
from tests.fakeaws.account import Account, NotThere
from tests.fakeaws.handler import AwsError, Handler
from tests.fakeaws.hosting import Hosting
from tests.helpers.ports import quiet_port

from windlass.engines.sagemaker.service import Absent, Refused
from windlass.engines.sagemaker.twin.service import FOLDER, Twin

ACCOUNT: Final = "123456789012"
REGION: Final = "us-east-1"
GROUP: Final = "/aws/sagemaker/TrainingJobs"
ENDPOINTS: Final = (
    "AWS_ENDPOINT_URL_SAGEMAKER",
    "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS",
    "AWS_ENDPOINT_URL_STS",
    "AWS_ENDPOINT_URL_IAM",
    "AWS_ENDPOINT_URL_SERVICE_QUOTAS",
    "AWS_ENDPOINT_URL_ECR",
    "AWS_ENDPOINT_URL_SCHEDULER",
    "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME",
    "AWS_ENDPOINT_URL_CLOUDWATCH",
)
CAPACITY: Final = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)
STEPS: Final = "SecondaryStatusTransitions"


class ControlPlane:
    """The services of one account. Listens on loopback from `start` to `stop`, and keeps its jobs in between."""

    def __init__(self, home: Path, environ: Mapping[str, str], **twin: Any) -> None:
        """Jobs are stored below `home`; containers get the S3 settings in `environ`."""
        self.home = home
        self.account = Account(ACCOUNT)
        self.hosting = Hosting(self.account, REGION)
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
        self.bodies: dict[str, Mapping[str, Any]] = {}
        """The request of each training job, by its name."""
        self.tags: dict[str, list[dict[str, str]]] = {}
        """Of each training job, which its description lacks."""
        self.waits_with: tuple[str, str] | None = None
        """The secondary status and message with which new jobs wait for instances, until `provide`; None: none do."""
        self.waiting: dict[str, dict[str, Any]] = {}
        """Descriptions of jobs that have no instances yet, by name; of those that were stopped, to the end."""
        self.warm_pools: dict[str, dict[str, Any]] = {}
        """The `WarmPoolStatus` of jobs whose instances are kept, by name."""
        self.fails_with = ""
        """The `FailureReason` with which jobs fail before a container is started; empty where they do not."""
        self.on_call: Callable[[str], object] = lambda operation: None
        """Called with each operation before it is carried out."""
        self.on_answer: Callable[[str], object] = lambda operation: None
        """Called with each operation before it is answered."""
        self._server: ThreadingHTTPServer | None = None
        self._port = quiet_port()
        """None of those that the kernel gives out: it must still be free at the second start."""

    def start(self) -> None:
        """Starts listening, on the same port as before."""
        handler = type("Handler", (Handler,), {"plane": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self.twin = Twin(self.home, self.container_environ, **self._options)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        """Stops listening; jobs continue."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that point boto3 to this server."""
        url = f"http://127.0.0.1:{self._port}"
        return {**dict.fromkeys(ENDPOINTS, url), "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}

    @property
    def container_environ(self) -> dict[str, str]:
        """Environment of this machine for containers, with the emulated endpoints in place of AWS."""
        return {**self._environ, "AWS_ENDPOINT_URL_SECRETS_MANAGER": f"http://127.0.0.1:{self._port}"}

    def refuse(self, operation: str, code: str, message: str, times: int = 1, status: int = 400) -> None:
        """Fails the next calls of an operation with an error."""
        self.errors.setdefault(operation, deque()).extend(AwsError(code, message, status) for _ in range(times))

    def jobs(self) -> list[str]:
        """Returns the names of all training jobs."""
        return sorted([*self.never_started, *self.waiting, *(path.name for path in (self.home / FOLDER).glob("[!.]*"))])

    def answer(self, service: str, operation: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the response of a call. Raises AwsError."""
        self._receive(operation)
        parts = (self, self.account, self.hosting)
        carry_out = next((call for one in parts if (call := getattr(one, f"_{operation}", None))), None)
        if carry_out is None:
            raise AwsError("UnknownOperationException", operation)
        if wrong := _problems(service, operation, "input_shape", body):
            raise AwsError("ValidationException", wrong)
        try:
            resource = self.hosting.resource(operation, body) if hasattr(self.hosting, f"_{operation}") else None
            self.account.require(service, operation, body, REGION, resource)
            self.hosting.settle()
            found: dict[str, Any] = carry_out(body)
        except Refused as error:
            raise AwsError(error.code, error.message) from error
        except NotThere as error:
            raise AwsError(*error.args) from error
        shape = _operation(service, operation).output_shape
        found = {} if shape is None else _known(found, shape)
        wrong = _problems(service, operation, "output_shape", _timed(found))
        assert not wrong, wrong
        self.on_answer(operation)
        return found

    def invoke(self, endpoint: str, body: bytes, content_type: str, accept: str) -> tuple[int, str, bytes]:
        """Returns status, content type and body of InvokeEndpoint. Raises AwsError."""
        self._receive("InvokeEndpoint")
        named = {"EndpointName": endpoint}
        try:
            resource = self.hosting.resource("InvokeEndpoint", named)
            self.account.require("sagemaker", "InvokeEndpoint", named, REGION, resource)
        except NotThere as error:
            raise AwsError(*error.args) from error
        found = self.hosting.invoke(endpoint, body, content_type, accept)
        self.on_answer("InvokeEndpoint")
        return found

    def _receive(self, operation: str) -> None:
        """Counts a call, and raises the error with which it is answered, if any."""
        self.calls[operation] += 1
        self.on_call(operation)
        if self.is_login_expired:
            raise AwsError("ExpiredTokenException", "The security token included in the request is expired")
        if self.errors.get(operation):
            raise self.errors[operation].popleft()

    # -- SageMaker ----------------------------------------------------------------------------------------------------

    def _CreateTrainingJob(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["TrainingJobName"]
        arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"
        self.tags.setdefault(name, body.get("Tags", []))
        self.bodies.setdefault(name, body)
        if name in self.never_started or name in self.waiting:
            raise AwsError("ResourceInUse", f"training job {name} exists")
        self.account.admit(body)
        if self.waits_with is not None:
            self.waiting[name] = _unstarted(body, arn, "InProgress", self.waits_with)
        elif self.fails_with:
            steps = (("Starting", "Preparing the instances for training"), ("Failed", self.fails_with))
            failed = {"FailureReason": self.fails_with, "TrainingEndTime": time.time()}
            self.never_started[name] = {**_unstarted(body, arn, "Failed", *steps), **failed}
        else:
            self._reuse_warm_pool(body)
            self.twin.create(body)
        return {"TrainingJobArn": arn}

    def provide(self) -> None:
        """Provides instances for all waiting and future jobs."""
        self.waits_with = None
        for name, job in list(self.waiting.items()):
            if job["TrainingJobStatus"] == "InProgress":
                self.twin.create(self.bodies[name])
                del self.waiting[name]

    def _reuse_warm_pool(self, body: Mapping[str, Any]) -> None:
        """Gives the instances of an ended job to a similar job that also uses a warm pool."""
        resources = body["ResourceConfig"]
        if not resources.get("KeepAlivePeriodInSeconds"):
            return
        for name, pool in self.warm_pools.items():
            there = self.twin.describe(name)
            alike = all(there["ResourceConfig"][key] == resources[key] for key in ("InstanceType", "InstanceCount"))
            if pool["Status"] == "Available" and alike and there["RoleArn"] == body["RoleArn"]:
                pool |= {"Status": "Reused", "ReusedByJob": body["TrainingJobName"]}
                return

    def _warm_pool(self, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the warm pool part of a job description."""
        if not found["ResourceConfig"].get("KeepAlivePeriodInSeconds") or name in self.never_started:
            return {}
        if found["TrainingJobStatus"] != "Completed":
            return {"WarmPoolStatus": {"Status": "InUse"}}
        return {"WarmPoolStatus": dict(self.warm_pools.setdefault(name, {"Status": "Available"}))}

    def _DescribeTrainingJob(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["TrainingJobName"]
        found = dict(self.never_started.get(name) or self.waiting.get(name) or self.twin.describe(name))
        path = f"{found['OutputDataConfig']['S3OutputPath']}/{name}/output/model.tar.gz"
        arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"
        # The service model requires the artifacts field, even before there are artifacts.
        pool = self._warm_pool(name, found)
        return {"ModelArtifacts": {"S3ModelArtifacts": path}, **found, **pool, "TrainingJobArn": arn}

    def _StopTrainingJob(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body["TrainingJobName"]
        if (job := self.waiting.get(name)) is None:
            self.twin.stop(name)
        elif job["TrainingJobStatus"] == "InProgress":
            arn, before = job["TrainingJobArn"], [(one["Status"], one["StatusMessage"]) for one in job[STEPS]]
            self.waiting[name] = _unstarted(self.bodies[name], arn, "Stopped", *before, ("Stopped", "Job stopped"))
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
        if (endpoint := self._endpoint_of(body)) is not None:
            return {"logStreams": [{"logStreamName": f"model/{endpoint}"}]}
        self._require_group(body)
        name, _, _ = body.get("logStreamNamePrefix", "").partition("/")
        if name in self.never_started or name in self.waiting:
            return {"logStreams": []}
        try:
            return {"logStreams": [{"logStreamName": one} for one in self.twin.log_streams(name)]}
        except Absent:  # an unknown job simply has no log streams
            return {"logStreams": []}

    def _GetLogEvents(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if (endpoint := self._endpoint_of(body)) is not None:
            return {"events": [{"timestamp": 0, "message": line} for line in self.hosting.logs[endpoint]]}
        self._require_group(body)
        token = body.get("nextToken", "")
        if not self.has_logs:
            return {"events": [], "nextForwardToken": token or "f/0", "nextBackwardToken": "b/0"}
        since, offset = body.get("startTime", 0), token.removeprefix("f/") or None
        page = self.twin.read_log(body["logStreamName"], since=since, token=offset)
        now = int(time.time() * 1000)
        events = [{"timestamp": at, "message": text, "ingestionTime": now} for at, text in page.lines]
        return {"events": events, "nextForwardToken": f"f/{page.token}", "nextBackwardToken": "b/0"}

    def _endpoint_of(self, body: Mapping[str, Any]) -> str | None:
        """Returns the endpoint whose log group a request names; None for other and missing groups."""
        name = body["logGroupName"].removeprefix("/aws/sagemaker/Endpoints/")
        return name if name in self.hosting.logs else None

    def _require_group(self, body: Mapping[str, Any]) -> None:
        if body["logGroupName"] != GROUP:
            raise AwsError("ResourceNotFoundException", "The specified log group does not exist.")

    # -- STS ----------------------------------------------------------------------------------------------------------

    def _GetCallerIdentity(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"UserId": "AIDA", "Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/ada"}


def _unstarted(body: Mapping[str, Any], arn: str, status: str, *steps: tuple[str, str]) -> dict[str, Any]:
    """Returns the description of a job without any started container, after these steps."""
    now = time.time()
    return {
        **body,
        "TrainingJobArn": arn,
        "TrainingJobStatus": status,
        "SecondaryStatus": steps[-1][0],
        "CreationTime": now,
        "LastModifiedTime": now,
        STEPS: [{"Status": one, "StartTime": now, "StatusMessage": text} for one, text in steps],
    }


@functools.cache
def _operation(service: str, name: str) -> Any:
    return Session().get_service_model(service).operation_model(name)


def _problems(service: str, operation: str, side: str, body: Mapping[str, Any]) -> str:
    """Returns the validation errors of the service model; empty if valid."""
    shape = getattr(_operation(service, operation), side)
    return "" if shape is None else str(ParamValidator().validate(dict(body), shape).generate_report())


def _known(value: Any, shape: Any) -> Any:
    """Returns a response without the fields that its shape lacks, in which emulated services keep their own facts."""
    if shape.type_name == "structure":
        return {name: _known(one, shape.members[name]) for name, one in value.items() if name in shape.members}
    return [_known(one, shape.member) for one in value] if shape.type_name == "list" else value


def _timed(value: Any, name: str = "") -> Any:
    """Converts numbers to the timestamps that the service model requires; on the wire they are numbers."""
    if isinstance(value, Mapping):
        return {key: _timed(one, key) for key, one in value.items()}
    if name == "Timestamps":
        return [datetime.fromtimestamp(one, UTC) for one in value]
    if isinstance(value, list):
        return [_timed(one) for one in value]
    if name == "CreateDate":
        return datetime.fromisoformat(value)
    return datetime.fromtimestamp(value, UTC) if name.endswith("Time") and isinstance(value, float) else value
