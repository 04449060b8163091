"""Services and deployments: output of `windlass services`, `close`, `deploy` and `invoke`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from windlass.engines.deployments import Deployment, DeploymentPlan
    from windlass.services.service import Service

DEPLOYMENT: Final = "deployment"
UNUSED_SECONDS: Final = 24 * 3600.0
"""Seconds without a request after which a deployment is marked as unused."""


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service that has not ended, or whose state is unknown."""

    name: str
    kind: str
    """`tensorboard`, `notebook` or `deployment`."""
    target: str
    phase: str
    owner: str
    run: str
    """Run whose results the service uses; empty without one."""
    created_at: float | None
    ends_at: float | None
    """When the service ends by itself, in Unix seconds; null if it never does, or if that is unknown."""
    ends_by: str
    """What ends the service: `supervisor`, `cluster` or `schedule`; empty if nothing does."""
    price_per_hour: float | None
    """Price per hour in `currency`; null if unknown."""
    currency: str
    last_request_at: float | None
    """Unix seconds of the last request; null if unknown."""
    replicas: int
    ready_replicas: int
    address: str
    """Public address of an exposed deployment; empty without one, or until its load balancer has one."""
    cause: str
    """Why the service failed, waits or is unknown; empty without a reason."""
    is_unused: bool
    """Whether a deployment is known to have had no request for 24 h."""


@dataclass(frozen=True, slots=True)
class UnansweredTarget:
    """A target that did not list its services: services may be up there."""

    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class ServiceList:
    """The services of all targets."""

    services: tuple[ServiceView, ...]
    unanswered: tuple[UnansweredTarget, ...]
    """Targets whose services are unknown."""


@dataclass(frozen=True, slots=True)
class ClosedService:
    """A service that was ended."""

    name: str
    target: str
    removed: tuple[str, ...]
    """The objects that were removed."""


@dataclass(frozen=True, slots=True)
class PlannedDeployment:
    """What `windlass deploy` would create."""

    name: str
    target: str
    steps: tuple[str, ...]
    notes: tuple[str, ...]
    price_per_hour: float | None
    """Price per hour in `currency`; null if unknown."""
    currency: str
    ends_at: float | None


@dataclass(frozen=True, slots=True)
class Invocation:
    """Answer of a deployed model."""

    name: str
    status: int
    """HTTP status."""
    content_type: str
    body: Any
    """The answer: the value if it is JSON, else text, or other bytes in base64."""
    labels: tuple[str, ...]
    """Names of the predicted classes, one for each sample; empty if this machine does not know the model's labels."""


def deployment_view(found: Deployment, now: float) -> ServiceView:
    """Builds the view of a deployment at `now` (Unix seconds)."""
    since = found.last_request_at
    return ServiceView(
        found.name,
        DEPLOYMENT,
        found.target,
        found.phase,
        found.owner,
        found.run_id,
        found.created_at,
        found.ends_at,
        found.ends_by,
        found.price_per_hour,
        found.currency,
        since,
        found.replicas,
        found.ready_replicas,
        found.address,
        found.cause,
        is_unused=since is not None and now - since > UNUSED_SECONDS,
    )


def service_view(found: Service) -> ServiceView:
    """Builds the view of a service that is a run, such as a notebook."""
    return ServiceView(
        found.name,
        found.kind,
        found.target,
        found.phase,
        found.owner,
        found.run_id,
        found.created_at,
        found.ends_at,
        found.ends_by,
        found.price_per_hour,
        found.currency,
        last_request_at=None,
        replicas=1,
        ready_replicas=int(found.phase == "up"),
        address="",
        cause=found.cause,
        is_unused=False,
    )


def planned_view(plan: DeploymentPlan) -> PlannedDeployment:
    """Builds the view of a plan of a deployment."""
    asked = plan.request
    return PlannedDeployment(
        asked.name, plan.target, plan.steps, plan.notes, plan.price_per_hour, plan.currency, asked.ends_at
    )
