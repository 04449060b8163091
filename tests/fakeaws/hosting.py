"""Emulated models, endpoints and schedules of an account (not AWS), with a clock that tests advance.

An endpoint becomes ready after `creating_seconds`. DeleteEndpoint is refused while an endpoint is Creating, as AWS
does. Schedules carry out their targets with the rights of their role, and repeat what is refused.
"""

from __future__ import annotations

import calendar
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from tests.fakeaws.account import Account, NotThere, allows
from tests.fakeaws.handler import AwsError

STUCK_SECONDS: Final = 3600.0
"""Seconds after which AWS fails an endpoint that is Creating."""
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 60.0, 3600.0
STEP_SECONDS: Final = 30.0
NO_CAPACITY: Final = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
NO_PING: Final = (
    "The primary container for production variant model did not pass the ping health check. "
    "Please check CloudWatch logs for this endpoint."
)


class Server(Protocol):
    """The container of an endpoint."""

    def log_lines(self) -> list[str]:
        """Returns what the container has written."""

    def has_ended(self) -> bool:
        """Whether the container has ended."""

    def is_healthy(self) -> bool:
        """Whether GET /ping answers 200."""

    def invoke(self, body: bytes, content_type: str, accept: str) -> tuple[int, str, bytes]:
        """Returns status, content type and body of POST /invocations."""

    def stop(self) -> None:
        """Ends the container."""


class Hosting:
    """The deployed models of one account."""

    def __init__(self, account: Account, region: str) -> None:
        self.account, self._region = account, region
        self.models: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.due: dict[str, tuple[float, float]] = {}
        """Time of the first and of the next call of each schedule."""
        self.tags: dict[str, dict[str, str]] = {}
        """By ARN."""
        self.created: list[str] = []
        """Names of all endpoints that were ever created."""
        self.logs: dict[str, list[str]] = {}
        """Log lines by name of the endpoint; one without an entry has no log group."""
        self.requests: dict[str, list[float]] = {}
        self.creating_seconds, self.deleting_seconds = 60.0, 30.0
        self.is_stuck = False
        """Whether new endpoints stay in Creating for an hour."""
        self.fails_with = ""
        """FailureReason of new endpoints; empty if they become ready."""
        self.serve: Callable[[Mapping[str, Any]], Server] | None = None
        """Starts the container of a model; None: endpoints answer with the body that they got."""
        self.has_object: Callable[[str], bool] = lambda address: True
        self.delete_object: Callable[[str, str], object] = lambda bucket, key: None
        self._servers: dict[str, Server] = {}
        self._offset = 0.0
        self._lock = threading.RLock()

    # -- time ---------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Returns the time of the emulated account in Unix seconds."""
        return time.time() + self._offset

    def advance(self, seconds: float) -> None:
        """Lets time pass, with all that happens in it."""
        with self._lock:
            while seconds > 0:
                step = min(seconds, STEP_SECONDS)
                self._offset += step
                seconds -= step
                self.settle()

    def settle(self) -> None:
        """Carries out what is due."""
        with self._lock:
            for name, one in list(self.endpoints.items()):
                self._settle_endpoint(name, one)
            for name in list(self.due):
                self._settle_schedule(name)

    def close(self) -> None:
        """Ends all containers."""
        for one in self._servers.values():
            one.stop()

    def _settle_endpoint(self, name: str, one: dict[str, Any]) -> None:
        age = self.time() - one["LastModifiedTime"]
        if one["EndpointStatus"] == "Deleting" and age >= self.deleting_seconds:
            del self.endpoints[name]
            self.tags.pop(one["EndpointArn"], None)
            if name in self._servers:
                self._servers.pop(name).stop()
        if one["EndpointStatus"] != "Creating":
            return
        config = self.configs.get(one["EndpointConfigName"])
        model = None if config is None else self.models.get(config["ProductionVariants"][0]["ModelName"])
        if one["is_stuck"] or model is None:  # users report that missing parts leave an endpoint in Creating
            if age >= STUCK_SECONDS:
                self._become(one, "Failed", "Request to service failed. If failure persists, contact customer support.")
        elif age >= self.creating_seconds:
            if one["fails_with"]:
                self._become(one, "Failed", one["fails_with"])
            elif self.serve is None:
                self._become(one, "InService")
            else:
                if name not in self._servers:
                    self._servers[name] = self.serve(model)
                self.logs[name] = self._servers[name].log_lines()
                if self._servers[name].is_healthy():
                    self._become(one, "InService")
                elif self._servers[name].has_ended():
                    self._become(one, "Failed", NO_PING)

    def _become(self, one: dict[str, Any], status: str, reason: str = "") -> None:
        one |= {"EndpointStatus": status, "LastModifiedTime": self.time()}
        if reason:
            one["FailureReason"] = reason

    def _settle_schedule(self, name: str) -> None:
        first, following = self.due[name]
        schedule = self.schedules[name]
        if self.time() < following:
            return
        policy = schedule["Target"]["RetryPolicy"]
        try:
            self._carry_out(schedule["Target"])
        except (AwsError, NotThere):
            if self.time() - first < policy["MaximumEventAgeInSeconds"]:
                pause = min(MAX_RETRY_SECONDS, max(FIRST_RETRY_SECONDS, following - first))
                self.due[name] = first, self.time() + pause
                return
        del self.due[name]
        if schedule["ActionAfterCompletion"] == "DELETE":
            del self.schedules[name]

    def _carry_out(self, target: Mapping[str, Any]) -> None:
        service, _, call = target["Arn"].partition(":aws-sdk:")[2].partition(":")
        operation, body = call[0].upper() + call[1:], json.loads(target["Input"])
        policy = self.account.policies.get(target["RoleArn"])
        resource = f"arn:aws:s3:::{body['Bucket']}/{body['Key']}" if service == "s3" else self.resource(operation, body)
        if policy is not None and not allows(policy, f"{service}:{operation}", resource, {}):
            raise AwsError("AccessDeniedException", f"not authorized to perform {operation}")
        if service == "s3":
            self.delete_object(body["Bucket"], body["Key"])
        else:
            getattr(self, f"_{operation}")(body)

    # -- models, configurations, endpoints ----------------------------------------------------------------------------

    def resource(self, operation: str, body: Mapping[str, Any]) -> str:
        """Returns the ARN of the object that a request names; `*` for lists."""
        if operation in ("AddTags", "ListTags"):
            return str(body["ResourceArn"])
        if operation.endswith("Schedule"):
            return f"arn:aws:scheduler:{self._region}:{self.account.number}:schedule/default/{body['Name']}"
        for field, kind in (
            ("EndpointName", "endpoint"),
            ("EndpointConfigName", "endpoint-config"),
            ("ModelName", "model"),
        ):
            if field in body:
                return self._arn(kind, body[field])
        return "*"

    def _arn(self, kind: str, name: str) -> str:
        return f"arn:aws:sagemaker:{self._region}:{self.account.number}:{kind}/{name}"

    def _make(self, of: dict[str, dict[str, Any]], word: str, kind: str, field: str, body: Mapping[str, Any]) -> str:
        name, arn = body[field], self._arn(kind, body[field])
        if name in of:
            raise AwsError("ValidationException", f'Cannot create already existing {word} "{arn}".')
        arn_field = f"{field.removesuffix('Name')}Arn"
        of[name] = {
            **{key: one for key, one in body.items() if key != "Tags"},
            arn_field: arn,
            "CreationTime": self.time(),
        }
        self.tags[arn] = {one["Key"]: one["Value"] for one in body.get("Tags", ())}
        return arn

    def _get(self, of: dict[str, dict[str, Any]], word: str, kind: str, name: str) -> dict[str, Any]:
        if name not in of:
            raise AwsError("ValidationException", f'Could not find {word} "{self._arn(kind, name)}".')
        return of[name]

    def _CreateModel(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if "ExecutionRoleArn" not in body:
            raise AwsError("ValidationException", "ExecutionRoleArn is required to create a model.")
        container = body["PrimaryContainer"]
        self.account.admit_role(body["ExecutionRoleArn"])
        self.account.admit_image(container["Image"])
        if not self.has_object(container["ModelDataUrl"]):
            raise AwsError("ValidationException", f"Could not find model data at {container['ModelDataUrl']}.")
        return {"ModelArn": self._make(self.models, "model", "model", "ModelName", body)}

    def _DescribeModel(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._get(self.models, "model", "model", body["ModelName"])

    def _DeleteModel(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._DescribeModel(body)
        del self.models[body["ModelName"]]
        return {}

    def _ListModels(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"Models": _named(self.models, body)}

    def _CreateEndpointConfig(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._DescribeModel(body["ProductionVariants"][0])
        word, kind = "endpoint configuration", "endpoint-config"
        return {"EndpointConfigArn": self._make(self.configs, word, kind, "EndpointConfigName", body)}

    def _DescribeEndpointConfig(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._get(self.configs, "endpoint configuration", "endpoint-config", body["EndpointConfigName"])

    def _DeleteEndpointConfig(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._DescribeEndpointConfig(body)
        del self.configs[body["EndpointConfigName"]]
        return {}

    def _ListEndpointConfigs(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"EndpointConfigs": _named(self.configs, body)}

    def _CreateEndpoint(self, body: Mapping[str, Any]) -> dict[str, Any]:
        config = self._DescribeEndpointConfig(body)
        variant = config["ProductionVariants"][0]
        count = variant.get("InitialInstanceCount", 0)
        if count:
            self.account.admit_instances(f"{variant['InstanceType']} for endpoint usage", count)
        arn = self._make(self.endpoints, "endpoint", "endpoint", "EndpointName", body)
        self.created.append(body["EndpointName"])
        numbers = {"CurrentInstanceCount": count, "DesiredInstanceCount": count} if count else {}
        self.endpoints[body["EndpointName"]] |= {
            "EndpointStatus": "Creating",
            "LastModifiedTime": self.time(),
            "ProductionVariants": [{"VariantName": variant["VariantName"], **numbers}],
            "is_stuck": self.is_stuck,
            "fails_with": self.fails_with,
        }
        return {"EndpointArn": arn}

    def _DescribeEndpoint(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if len(body["EndpointName"]) > 63 or re.fullmatch("[a-zA-Z0-9](-*[a-zA-Z0-9])*", body["EndpointName"]) is None:
            message = (
                f"1 validation error: Value '{body['EndpointName']}' at 'endpointName' failed to satisfy constraint"
            )
            raise AwsError("ValidationException", message)
        return self._get(self.endpoints, "endpoint", "endpoint", body["EndpointName"])

    def _DeleteEndpoint(self, body: Mapping[str, Any]) -> dict[str, Any]:
        found = self._DescribeEndpoint(body)
        if found["EndpointStatus"] in ("Creating", "Updating", "Deleting"):
            raise AwsError("ValidationException", f'Cannot update in-progress endpoint "{found["EndpointArn"]}".')
        self._become(found, "Deleting")
        return {}

    def _ListEndpoints(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"Endpoints": _named(self.endpoints, body)}

    def _ListTags(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"Tags": [{"Key": key, "Value": one} for key, one in self.tags.get(body["ResourceArn"], {}).items()]}

    def _AddTags(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.tags[body["ResourceArn"]] |= {one["Key"]: one["Value"] for one in body["Tags"]}
        return {"Tags": body["Tags"]}

    # -- EventBridge Scheduler ----------------------------------------------------------------------------------------

    def _CreateSchedule(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["Name"] in self.schedules:
            raise AwsError("ConflictException", f"Schedule {body['Name']} already exists.", 409)
        return self._put_schedule(body)

    def _UpdateSchedule(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._GetSchedule(body)
        return self._put_schedule(body)

    def _put_schedule(self, body: Mapping[str, Any]) -> dict[str, Any]:
        trusted = self.account.roles.get(body["Target"]["RoleArn"].rpartition("/")[2])
        if self.account.roles and "scheduler.amazonaws.com" not in json.dumps(trusted):
            message = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
            raise AwsError("ValidationException", message)
        found = re.fullmatch(r"at\((.*)\)", body["ScheduleExpression"])
        assert found is not None
        at = _unix(found[1])
        self.schedules[body["Name"]] = dict(body)
        self.due[body["Name"]] = at, at
        return {
            "ScheduleArn": f"arn:aws:scheduler:{self._region}:{self.account.number}:schedule/default/{body['Name']}"
        }

    def _GetSchedule(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["Name"] not in self.schedules:
            raise AwsError("ResourceNotFoundException", f"Schedule {body['Name']} does not exist.", 404)
        return self.schedules[body["Name"]]

    def _DeleteSchedule(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._GetSchedule(body)
        del self.schedules[body["Name"]], self.due[body["Name"]]
        return {}

    def _ListSchedules(self, body: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name in self.schedules if name.startswith(body.get("NamePrefix", ""))]
        return {"Schedules": [{"Name": name} for name in names]}

    # -- requests -----------------------------------------------------------------------------------------------------

    def _GetMetricData(self, body: Mapping[str, Any]) -> dict[str, Any]:
        found = []
        for query in body["MetricDataQueries"]:
            period = query["MetricStat"]["Period"]
            sizes = {one["Name"]: one["Value"] for one in query["MetricStat"]["Metric"]["Dimensions"]}
            times = sorted({at // period * period for at in self.requests.get(sizes["EndpointName"], ())}, reverse=True)
            found.append(
                {"Id": query["Id"], "Timestamps": times, "Values": [1.0] * len(times), "StatusCode": "Complete"}
            )
        return {"MetricDataResults": found}

    def invoke(self, name: str, body: bytes, content_type: str, accept: str) -> tuple[int, str, bytes]:
        """Returns status, content type and body of InvokeEndpoint. Raises AwsError."""
        self.settle()
        if self.endpoints.get(name, {}).get("EndpointStatus") != "InService":
            raise AwsError("ValidationError", f"Endpoint {name} of account {self.account.number} not found.")
        self.requests.setdefault(name, []).append(self.time())
        server = self._servers.get(name)
        return (200, content_type, body) if server is None else server.invoke(body, content_type, accept)


def _named(of: Mapping[str, Mapping[str, Any]], body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for name, one in of.items() if body.get("NameContains", "") in name]


def _unix(moment: str) -> float:
    return float(calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%S")))
