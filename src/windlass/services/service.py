"""Services that are runs: the request for one, its job, and its state, which is read from the run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import field_validator

from windlass.engines.values import RunState
from windlass.plan.price import Price
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.spec.job import Job
from windlass.spec.labels import SERVICE_IDLE_LABEL, SERVICE_LABEL, SERVICE_LABELS, SERVICE_SECONDS_LABEL

DEFAULT_SECONDS: Final = 8 * 3600.0
"""Seconds after which a service ends by itself, unless the user chooses otherwise."""
GRACE_SECONDS: Final = 10.0
"""Seconds from SIGTERM to SIGKILL for the program of a service."""


class ServiceKind(StrEnum):
    """Kind of a service."""

    TENSORBOARD = "tensorboard"
    NOTEBOOK = "notebook"
    DEPLOYMENT = "deployment"


class ServicePhase(StrEnum):
    """Phase of a service."""

    STARTING = "starting"
    UP = "up"
    """The program of the service runs, and listens or is about to listen."""
    CLOSING = "closing"
    ENDED = "ended"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The target did not report the current state: the service may be up and may bill."""


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """A service to start: the fields of the job that runs its program, its limits and its files."""

    kind: ServiceKind
    name: str
    """Name of the job: the service's run is called `NAME-xxxxx`. A deployment is found by this name."""
    base: Path
    """Folder to which paths in `fields` are relative."""
    fields: Mapping[str, Any]
    """Fields of the job except name, labels, launcher and time limits; such as `command` and `env`."""
    seconds: float | None = DEFAULT_SECONDS
    """Seconds after which the service ends by itself; None if it never does."""
    idle_seconds: float | None = None
    """Seconds without requests after which the program ends by itself; None without such a limit. The program
    enforces the limit; lists show it."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files that the program finds in `$WINDLASS_SERVICE_DIR` beside its certificate, key and token. In a cluster all
    files together must fit into a Secret of 1 MiB."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service that is a run, as its target reports it."""

    name: str
    """Name for `close`: the job's name of a deployment, otherwise the run id."""
    run_id: str
    kind: ServiceKind
    target: str
    phase: ServicePhase
    owner: str
    """User who started the service; empty if unknown."""
    created_at: float
    """Unix seconds."""
    ends_at: float | None
    """When the service ends by itself, in Unix seconds; None if it never does."""
    idle_seconds: float | None
    """Seconds without requests after which the service ends by itself; None without such a limit."""
    cause: str = ""
    """Why the service waits, has failed or is unknown; empty without a reason."""
    price_per_hour: float | None = None
    """Price per hour, in `currency`; None if unknown."""
    currency: str = "USD"
    port: int | None = None
    """Port at which the service listens on the loopback address of its node; None if it does not listen yet."""
    in_cluster: bool = False
    """Whether the service is a pod of a cluster; otherwise, it is a process of this machine."""

    @property
    def ends_by(self) -> str:
        """What ends the service at its time limit: `cluster`, `supervisor`; empty if nothing does."""
        return "" if self.ends_at is None else "cluster" if self.in_cluster else "supervisor"


class ServiceJob(Job):
    """Job of a service. Labels mark it as a service; jobs of users may not have these labels."""

    @field_validator("labels")
    @classmethod
    def _labels_of_users(cls, labels: dict[str, str]) -> dict[str, str]:
        Job._labels_of_users({key: text for key, text in labels.items() if key not in SERVICE_LABELS})
        return labels


def job_of(request: ServiceRequest) -> ServiceJob:
    """Returns the job that runs the program of a service. Raises JobFileError."""
    limits = {SERVICE_SECONDS_LABEL: request.seconds, SERVICE_IDLE_LABEL: request.idle_seconds}
    labels = {SERVICE_LABEL: request.kind.value} | {key: f"{one:.0f}" for key, one in limits.items() if one is not None}
    common = {"launcher": "plain", "hang": None, "grace": GRACE_SECONDS, "timeout": request.seconds}
    return ServiceJob(name=request.name, labels=labels, **common, **request.fields)


def is_service(status: Status) -> bool:
    """Whether a run is a service."""
    return SERVICE_LABEL in status.about.labels


def service_of(state: RunState, port: int | None, price: Price | None) -> Service:
    """Returns the service that a marked run is.

    `port` is the port at which it listens, None if it does not yet, and `price` the price of its plan, None if unknown.
    """
    status = state.status
    labels, kind = status.about.labels, _kind(status)
    seconds = _number(labels.get(SERVICE_SECONDS_LABEL))
    now = state.as_of
    phase = _phase(status.phase, is_listening=port is not None)
    return Service(
        name=status.name if kind is ServiceKind.DEPLOYMENT else status.id,
        run_id=status.id,
        kind=kind,
        target=status.target,
        phase=ServicePhase.UNKNOWN if state.stale and not status.phase.is_terminal else phase,
        owner=status.about.user,
        created_at=status.times.created_at,
        ends_at=None if seconds is None else now + seconds - status.times.limited_seconds(now),
        idle_seconds=_number(labels.get(SERVICE_IDLE_LABEL)),
        cause=state.stale or status.waits_for or (status.cause.summary if status.cause is not None else ""),
        price_per_hour=None if price is None else price.per_hour,
        currency="USD" if price is None else price.currency,
        port=port,
        in_cluster=status.supervision.machine is None,
    )


def _kind(status: Status) -> ServiceKind:
    """Returns the kind of a service. An unknown kind, of a later version of Windlass, counts as a deployment."""
    value = status.about.labels[SERVICE_LABEL]
    return ServiceKind(value) if value in set(ServiceKind) else ServiceKind.DEPLOYMENT


def _number(text: str | None) -> float | None:
    """Returns the number in a label; None without a label, or if another program has changed the label to text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _phase(phase: Phase, *, is_listening: bool) -> ServicePhase:
    if phase is Phase.STOPPING:
        return ServicePhase.CLOSING
    if phase in (Phase.FAILED, Phase.LOST):
        return ServicePhase.FAILED
    if phase.is_terminal:
        return ServicePhase.ENDED
    return ServicePhase.UP if is_listening else ServicePhase.STARTING
