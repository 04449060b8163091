"""Client for the objects of deployments: models, endpoints, their schedules, requests and logs. Uses botocore."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session

from windlass.engines.deployments import ModelResponse
from windlass.engines.sagemaker.aws import ABSENT, OTHER_HINT, RETRIES, checked_call
from windlass.engines.sagemaker.endpoint_requests import PREFIX, VARIANT, Body
from windlass.engines.sagemaker.service import VALIDATION, NotLoggedIn, Refused

T = TypeVar("T")

LOG_GROUP: Final = "/aws/sagemaker/Endpoints/"
"""Prefix of the names of log groups. Each endpoint has its own group."""
NAMESPACE: Final = "AWS/SageMaker"
LOG_LINES: Final = 100
METRIC_SECONDS: Final = 300
METRIC_DAYS: Final = 14
METRIC_QUERIES: Final = 500
"""Maximum number of queries in one call of GetMetricData."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: the names of its operations and fields."""

    word: str
    """Word for messages."""
    operation: str
    """Name in botocore's methods, such as `endpoint_config`."""
    field: str
    """Field with the name of an object, such as `EndpointConfigName`."""

    @property
    def results(self) -> str:
        """Field with the objects in the response of a list."""
        return f"{self.field.removesuffix('Name')}s"


ENDPOINT: Final = Kind("endpoint", "endpoint", "EndpointName")
CONFIG: Final = Kind("endpoint configuration", "endpoint_config", "EndpointConfigName")
MODEL: Final = Kind("model", "model", "ModelName")


class Hosting:
    """Objects of deployments in one account and region. Methods raise Refused, Unavailable and NotLoggedIn.

    An object counts as missing only if AWS reports that it does not exist, not after other errors.
    """

    def __init__(self, region: str, account: str = "", *, config: Config = RETRIES) -> None:
        """`account` is the account number of the target, if known: credentials of another account are refused."""
        self._session, self._region, self._account, self._config = Session(), region, account, config

    @functools.cached_property
    def _sagemaker(self) -> Any:
        """Client for SageMaker. Raises NotLoggedIn if the credentials belong to another account."""
        client = self._client("sagemaker")
        if self._account:
            found = checked_call(lambda: self._client("sts").get_caller_identity()["Account"])
            if str(found) != self._account:
                raise NotLoggedIn(f"the login is of account {found}, and the target is {self._account}", OTHER_HINT)
        return client

    @functools.cached_property
    def _scheduler(self) -> Any:
        return self._client("scheduler")

    def _client(self, service: str, config: Config | None = None) -> Any:
        chosen = config or self._config
        return checked_call(lambda: self._session.create_client(service, region_name=self._region, config=chosen))

    # -- models, configurations, endpoints ----------------------------------------------------------------------------

    def describe(self, kind: Kind, name: str) -> Body | None:
        """Returns the description of an object; None if it does not exist."""

        def describe() -> Body:
            found: Body = self._call(kind, "describe")(**{kind.field: name})
            return found

        return _or_none(describe)

    def create(self, kind: Kind, body: Body) -> None:
        """Creates an object. An existing object with the same name is kept: names of models and configurations contain
        the digest of the request, and the caller compares the configuration of an endpoint.
        """
        try:
            checked_call(lambda: self._call(kind, "create")(**body))
        except Refused as error:
            if not (error.code == VALIDATION and "already existing" in error.message):
                raise

    def delete(self, kind: Kind, name: str) -> None:
        """Deletes an object; one that does not exist counts as deleted."""
        _or_none(lambda: self._call(kind, "delete")(**{kind.field: name}))

    def names(self, kind: Kind, contains: str = PREFIX) -> list[str]:
        """Returns the names of the objects of a kind whose names contain a text."""
        pages = self._sagemaker.get_paginator(f"list_{kind.operation}s").paginate(NameContains=contains)
        return checked_call(lambda: [str(one[kind.field]) for page in pages for one in page[kind.results]])

    def tags(self, arn: str) -> dict[str, str]:
        """Returns the tags of an object."""
        pages = self._sagemaker.get_paginator("list_tags").paginate(ResourceArn=arn)
        return checked_call(lambda: {str(one["Key"]): str(one["Value"]) for page in pages for one in page["Tags"]})

    def tag(self, arn: str, tags: Mapping[str, str]) -> None:
        """Adds tags to an object, or replaces their values."""
        given = [{"Key": name, "Value": value} for name, value in tags.items()]
        checked_call(lambda: self._sagemaker.add_tags(ResourceArn=arn, Tags=given))

    def _call(self, kind: Kind, verb: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self._sagemaker, f"{verb}_{kind.operation}")
        return found

    # -- schedules ----------------------------------------------------------------------------------------------------

    def schedule(self, name: str) -> Body | None:
        """Returns a schedule; None if it does not exist."""

        def get() -> Body:
            found: Body = self._scheduler.get_schedule(Name=name)
            return found

        return _or_none(get)

    def schedules(self, begin: str = PREFIX) -> list[str]:
        """Returns the names of the schedules whose names begin with a text."""
        pages = self._scheduler.get_paginator("list_schedules").paginate(NamePrefix=begin)
        return checked_call(lambda: [str(one["Name"]) for page in pages for one in page["Schedules"]])

    def create_schedule(self, body: Body) -> bool:
        """Creates a schedule. Returns False if one with the same name exists, which is kept unchanged."""
        try:
            checked_call(lambda: self._scheduler.create_schedule(**body))
        except Refused as error:
            if error.code != "ConflictException":
                raise
            return False
        return True

    def update_schedule(self, body: Body) -> None:
        """Replaces a schedule."""
        checked_call(lambda: self._scheduler.update_schedule(**body))

    def delete_schedule(self, name: str) -> None:
        """Deletes a schedule; one that does not exist counts as deleted."""
        _or_none(lambda: self._scheduler.delete_schedule(Name=name))

    # -- requests and logs --------------------------------------------------------------------------------------------

    def last_requests(self, endpoints: Iterable[str], now: float) -> dict[str, float]:
        """Returns the time of the last request of each endpoint in Unix seconds, with a resolution of five minutes. For
        an endpoint without a request in the last two weeks, this is the start of these weeks.
        """
        listed, client, since = list(endpoints), self._client("cloudwatch"), now - METRIC_DAYS * 86_400
        found = dict.fromkeys(listed, since)
        for first in range(0, len(listed), METRIC_QUERIES):
            some = listed[first : first + METRIC_QUERIES]
            pages = client.get_paginator("get_metric_data").paginate(
                MetricDataQueries=[_invocations(place, name) for place, name in enumerate(some)],
                StartTime=since,
                EndTime=now,
                ScanBy="TimestampDescending",
            )
            results = checked_call(lambda pages=pages: [one for page in pages for one in page["MetricDataResults"]])  # type: ignore[misc]
            for one in results:
                name, points = some[int(one["Id"][1:])], zip(one["Timestamps"], one["Values"], strict=True)
                found[name] = max([found[name], *(at.timestamp() for at, count in points if count > 0)])
        return found

    def invoke(
        self, endpoint: str, body: bytes, content_type: str, accept: str, timeout: float
    ) -> ModelResponse | None:
        """Sends one request to an endpoint; None if the endpoint does not exist. Errors of the model are responses."""
        # A repeated request would run the model twice.
        config = Config(retries={"total_max_attempts": 1}, connect_timeout=10, read_timeout=timeout)
        client = self._client("sagemaker-runtime", config)

        def send() -> ModelResponse:
            try:
                given = {"EndpointName": endpoint, "Body": body, "ContentType": content_type, "Accept": accept}
                found = client.invoke_endpoint(**given)
            except ClientError as error:
                if error.response["Error"]["Code"] != "ModelError":
                    raise
                said = str(error.response.get("OriginalMessage", ""))
                return ModelResponse(int(error.response.get("OriginalStatusCode", 500)), "text/plain", said.encode())
            return ModelResponse(200, str(found.get("ContentType", "")), found["Body"].read())

        try:
            return checked_call(send)
        except Refused as error:
            if error.code in ("ValidationError", VALIDATION) and "not found" in error.message:
                return None
            raise

    def log_lines(self, endpoint: str) -> list[str] | None:
        """Returns the last log lines of an endpoint's containers; None if the endpoint has no log group."""
        client, group = self._client("logs"), f"{LOG_GROUP}{endpoint}"

        def read() -> list[str]:
            streams = client.describe_log_streams(logGroupName=group, orderBy="LastEventTime", descending=True)
            found: list[str] = []
            for stream in streams["logStreams"][:1]:
                which = {"logGroupName": group, "logStreamName": stream["logStreamName"], "limit": LOG_LINES}
                found += [str(one["message"]) for one in client.get_log_events(**which)["events"]]
            return found

        return _or_none(read)


def _or_none(call: Callable[[], T]) -> T | None:
    """Returns the result of a call; None if AWS reports that the object does not exist."""
    try:
        return checked_call(call)
    except Refused as error:
        if error.code in ABSENT or (error.code == VALIDATION and "could not find" in error.message.lower()):
            return None
        raise


def _invocations(place: int, endpoint: str) -> dict[str, Any]:
    """Returns the query for the number of requests of an endpoint in each five minutes."""
    sizes = [{"Name": "EndpointName", "Value": endpoint}, {"Name": "VariantName", "Value": VARIANT}]
    metric = {"Namespace": NAMESPACE, "MetricName": "Invocations", "Dimensions": sizes}
    return {"Id": f"q{place}", "MetricStat": {"Metric": metric, "Period": METRIC_SECONDS, "Stat": "Sum"}}
