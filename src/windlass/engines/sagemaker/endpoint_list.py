"""Lists the deployments of an account on SageMaker, whichever machine created them, with end and last request."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from windlass.engines.deployments import NAME_PATTERN, Deployment, DeploymentPhase
from windlass.engines.sagemaker import endpoint_requests, layout, objects
from windlass.engines.sagemaker.description import seconds_of
from windlass.engines.sagemaker.endpoint_access import EndpointAccess
from windlass.engines.sagemaker.endpoint_objects import EndpointObjects, FoundObject
from windlass.engines.sagemaker.endpoint_requests import (
    END_TAG,
    LATER_SECONDS,
    PART_NAME,
    PREFIX,
    Body,
    archives,
    endpoint_name,
    schedule_name,
    scheduled_at,
)
from windlass.engines.sagemaker.hosting import CONFIG, ENDPOINT, MODEL
from windlass.errors import EngineError

PHASES: Final = {
    "Creating": DeploymentPhase.CREATING,
    "Deleting": DeploymentPhase.DELETING,
    "Failed": DeploymentPhase.FAILED,
    "OutOfService": DeploymentPhase.FAILED,
    "UpdateRollbackFailed": DeploymentPhase.FAILED,
}
"""Phases by `EndpointStatus`; endpoints in all other states serve requests."""


def phase_of(endpoint: Body) -> DeploymentPhase:
    """Returns the phase of an endpoint from its description."""
    return PHASES.get(str(endpoint["EndpointStatus"]), DeploymentPhase.READY)


class EndpointList:
    """The deployments of a target."""

    def __init__(self, access: EndpointAccess, own_objects: EndpointObjects) -> None:
        self._access, self._objects = access, own_objects

    def deployments(self) -> tuple[Deployment, ...]:
        """Returns all deployments, including those without an endpoint. Raises EngineError if AWS does not answer."""
        access = self._access
        parts = [PART_NAME.fullmatch(name) for kind in (CONFIG, MODEL) for name in access.hosting.names(kind)]
        own = {
            *(part["name"] for part in parts if part is not None),
            *(name.removeprefix(PREFIX).partition(".")[0] for name in access.hosting.schedules()),
            *(name.partition("/")[0] for name in objects.names(archives(access.target.storage), access.home)),
        }
        found: dict[str, Deployment] = {}
        for name in sorted({*own, *(name.removeprefix(PREFIX) for name in access.hosting.names(ENDPOINT))}):
            if re.fullmatch(NAME_PATTERN, name) is None:  # not of Windlass, and maybe no name of an endpoint
                continue
            endpoint = access.hosting.describe(ENDPOINT, endpoint_name(name))
            if endpoint is not None and PART_NAME.fullmatch(endpoint["EndpointConfigName"]):
                found[name] = self.deployment(name, endpoint)
            elif name in own and (left := self._objects.found(name)):
                found[name] = self._leftover(name, left)
        return tuple(self._with_requests(found))

    def deployment(self, name: str, endpoint: Body) -> Deployment:
        """Returns a deployment from the description of its endpoint. Raises EngineError."""
        tags = self._access.hosting.tags(str(endpoint["EndpointArn"]))
        config = self._access.hosting.describe(CONFIG, str(endpoint["EndpointConfigName"]))
        wanted = config["ProductionVariants"][0] if config is not None else {}
        now: Body = (endpoint.get("ProductionVariants") or ({},))[0]
        instance = "serverless" if "ServerlessConfig" in wanted else str(wanted.get("InstanceType", ""))
        replicas = int(now.get("DesiredInstanceCount", wanted.get("InitialInstanceCount", 0)))
        schedule = self._access.hosting.schedule(schedule_name(name, "endpoint"))
        cause = str(endpoint.get("FailureReason") or "")
        if schedule is None and tags.get(END_TAG) not in (None, endpoint_requests.NEVER):
            cause = cause or "its schedule does not exist: nothing ends it"
        return Deployment(
            name,
            self._access.target.name,
            phase_of(endpoint),
            owner=tags.get(layout.USER_TAG, ""),
            run_id=tags.get(layout.RUN_TAG, ""),
            cause=cause,
            created_at=seconds_of(endpoint["CreationTime"]),
            ends_at=None if schedule is None else scheduled_at(schedule),
            ends_by="" if schedule is None else "schedule",
            replicas=replicas,
            ready_replicas=int(now.get("CurrentInstanceCount", 0)),
            instance=instance,
            price_per_hour=self._access.price(instance, replicas),
            currency=self._access.target.currency,
            objects=(f"endpoint {endpoint['EndpointName']}",),
        )

    def _leftover(self, name: str, left: Sequence[FoundObject]) -> Deployment:
        """Returns a deployment that has no endpoint, from its other objects `left`."""
        first = next((one for one in left if one.kind is not None), None)
        found = None if first is None or first.kind is None else self._access.hosting.describe(first.kind, first.name)
        arn = "" if found is None else str(found.get("EndpointConfigArn") or found.get("ModelArn"))
        tags = self._access.hosting.tags(arn) if arn else {}
        schedule = self._access.hosting.schedule(schedule_name(name, "model"))
        ends_at = None if schedule is None else scheduled_at(schedule)
        is_ending = ends_at is not None and ends_at - LATER_SECONDS <= self._access.clock.time()
        return Deployment(
            name,
            self._access.target.name,
            DeploymentPhase.DELETING if is_ending else DeploymentPhase.FAILED,
            owner=tags.get(layout.USER_TAG, ""),
            run_id=tags.get(layout.RUN_TAG, ""),
            cause="" if is_ending else "it has no endpoint: a deploy is in progress, or was interrupted",
            ends_at=ends_at,
            ends_by="" if schedule is None else "schedule",
            objects=tuple(str(one) for one in left),
        )

    def _with_requests(self, found: dict[str, Deployment]) -> Iterator[Deployment]:
        """Yields the deployments with the time of their last request, or of their creation if there was none. The time
        is unknown if CloudWatch does not answer.
        """
        serving = [endpoint_name(name) for name, one in found.items() if one.phase is DeploymentPhase.READY]
        last: dict[str, float] = {}
        with contextlib.suppress(EngineError):
            last = self._access.hosting.last_requests(serving, self._access.clock.time()) if serving else {}
        for name, one in found.items():
            at = last.get(endpoint_name(name))
            yield one if at is None else replace(one, last_request_at=max(at, one.created_at or 0.0))
