"""Deployments of models: what is asked for, what a target reports, and the answer of a deployed model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final

from windlass.errors import MissingExtra
from windlass.plan.exposure import Exposure

NAME_PATTERN: Final = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
"""Names of deployments. They become parts of names of objects in a cluster and in AWS."""
DEFAULT_CPUS: Final = 1.0
DEFAULT_MEMORY_BYTES: Final = 2 << 30
"""Size of a server. Targets whose servers have no size of their own refuse others than these."""


class DeploymentPhase(StrEnum):
    """Phase of a deployment."""

    CREATING = "creating"
    READY = "ready"
    FAILED = "failed"
    DELETING = "deleting"
    UNKNOWN = "unknown"
    """The target did not answer: the deployment may exist and may bill."""


@dataclass(frozen=True, slots=True)
class DeploymentRequest:
    """A model to deploy, and on what."""

    name: str
    """Name of the deployment, unique at its target; see `NAME_PATTERN`."""
    model: Path
    """Folder on this machine with the files of the model and, in `code`, the functions that serve it; with a `source`,
    the folder has the code alone.
    """
    ends_at: float | None
    """When the deployment ends by itself, in Unix seconds; None if it never does."""
    owner: str
    """Login name of the user."""
    source: str = ""
    """Address of the model's files where the target can read them: `claim:NAME/PATH` or that of an object store; empty
    if they are in `model`.
    """
    run_id: str = ""
    """Run that produced the model; empty for a model from elsewhere."""
    python: str = ""
    """Interpreter on this machine that can import what the model needs; ignored by other targets."""
    image: str = ""
    """Container image; empty for the default of the target."""
    instance: str = ""
    """Instance type of SageMaker; empty for other targets."""
    replicas: int = 1
    max_replicas: int = 0
    """Maximum number of replicas of the autoscaler; 0 without one."""
    cpus: float = DEFAULT_CPUS
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    gpus: int = 0
    is_serverless: bool = False
    """Whether SageMaker runs the model only during requests."""
    uses_kserve: bool = False
    """Whether the cluster creates an InferenceService of KServe in place of a Deployment."""
    exposure: Exposure | None = None
    """Public load balancer in front of the deployment; None without one. Kubernetes alone has them."""
    secrets: tuple[str, ...] = ()
    """Secrets of the namespace with the variables, such as AWS_ACCESS_KEY_ID, by which pods read the `source`."""
    service_account: str = ""
    """Service account of the pods, with a role that may read the `source`; empty for none."""
    server_options: tuple[str, ...] = ()
    """Further options of `python -m windlass.serving`; ignored by images with a server of their own."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment as its target reports it."""

    name: str
    target: str
    phase: DeploymentPhase
    owner: str = ""
    run_id: str = ""
    cause: str = ""
    """Why the deployment failed, waits or is unknown: the first cause that the target reports; empty without one."""
    created_at: float | None = None
    ends_at: float | None = None
    """When the deployment ends by itself, in Unix seconds; None if it never does, or if that is unknown."""
    ends_by: str = ""
    """What ends the deployment: `supervisor`, `cluster` or `schedule`; empty if nothing does."""
    replicas: int = 0
    ready_replicas: int = 0
    instance: str = ""
    address: str = ""
    """Public address of an exposed deployment; empty without one, or until its load balancer has one."""
    price_per_hour: float | None = None
    """Price of all replicas per hour, in `currency`; None if unknown."""
    currency: str = "USD"
    last_request_at: float | None = None
    """Time of the last request in Unix seconds, or of the creation if there was none; None if unknown."""
    objects: tuple[str, ...] = ()
    """The objects of the deployment that exist at the target, for example `endpoint digits`."""


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """Steps and objects of a deployment, shown to the user before anything is created."""

    request: DeploymentRequest
    target: str
    steps: tuple[str, ...]
    """One sentence for each step, in order."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, for example that nothing ends the deployment."""
    price_per_hour: float | None = None
    """Price of all replicas per hour, in `currency`; None if unknown."""
    currency: str = "USD"
    objects: tuple[Mapping[str, object], ...] = field(default=(), repr=False)
    """The objects or requests that would be sent."""


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """Answer of a deployed model to one request."""

    status: int
    """HTTP status."""
    content_type: str
    body: bytes


INSTALL: Final = "pip install uvicorn"
HERE: Final = "this machine"
"""Place of deployments that are runs of this machine."""
OnProgress = Callable[[str], None]
"""Receives one sentence for each step of a deployment."""


def require_server() -> None:
    """Requires the packages of the model server on this machine: targets receive a copy. Raises MissingExtra."""
    from windlass.serving.pack import PACKAGES  # lists of deployments do not need it

    for package in PACKAGES:
        if find_spec(package) is None:
            raise MissingExtra(f"the model server needs {package}", INSTALL)


class Deployments:
    """The deployments of one target. Methods raise UsageError for bad requests, and EngineError if the target refuses
    or does not answer.
    """

    needs_credentials: ClassVar[bool] = False
    """Whether `deploy` needs a certificate, a key and a token."""
    reads_stores: ClassVar[bool] = False
    """Whether servers at the target read the files of a model from an object store by themselves."""
    serves_in_run_images: ClassVar[bool] = True
    """Whether the image of a run can serve its model. Images of SageMaker need a program `serve`, which those for
    training lack, and this machine uses no images."""

    def place(self) -> str:
        """Returns where the deployments are: `this machine`, the server and namespace of a cluster, or account and
        region. Names of targets, contexts and logins may come to mean another place. Raises UsageError, EngineError.
        """
        return HERE

    def plan(self, request: DeploymentRequest) -> DeploymentPlan:
        """Returns what `deploy` would create, without changing anything. Raises UsageError for what the target cannot
        do, MissingExtra if this machine lacks packages that `deploy` needs.
        """
        raise NotImplementedError

    def deploy(
        self, plan: DeploymentPlan, on_progress: OnProgress, credentials: Mapping[str, bytes] | None = None
    ) -> Deployment:
        """Creates a deployment and waits until it is ready. Repeating it with the same name and request continues where
        a killed process was, with its end time and credentials; a deployment of that name with another request is a
        UsageError.

        `credentials` are the files `tls.crt`, `tls.key` and `token` of a server that listens in a cluster. No plan has
        them.

        If the deployment fails, the objects that this call created are removed, and EngineError has the first cause. In
        a cluster, a deployment of an earlier call is kept, and so is one whose cluster does not answer.
        """
        raise NotImplementedError

    def list(self) -> tuple[Deployment, ...]:
        """Returns all deployments of the target, of all users and machines. Raises EngineError if the target does not
        answer: an unanswered list is not an empty one.
        """
        raise NotImplementedError

    def undeploy(self, name: str, on_progress: OnProgress) -> tuple[str, ...]:
        """Removes all objects of a deployment, waits until they are gone, and returns what was removed. Raises
        UsageError if there is no deployment of that name, EngineError with the objects that are left.
        """
        raise NotImplementedError

    def invoke(self, name: str, body: bytes, content_type: str, accept: str, timeout: float) -> ModelResponse:
        """Sends one request to a deployed model. Raises UsageError if there is no deployment of that name."""
        raise NotImplementedError
