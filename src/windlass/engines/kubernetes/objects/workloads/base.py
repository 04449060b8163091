"""Interface of a workload kind: the manifests of an attempt, and the capabilities of its controller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from windlass.engines.kubernetes.objects.workloads.runtimes import Runtime

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """Parameters of the owner object of an attempt."""

    num_nodes: int
    min_nodes: int
    """Fewest nodes with which the job can continue."""
    procs_per_node: int = 1
    ttl_seconds: int | None = None
    """Seconds for which the cluster keeps the pods after their end; None to keep them until they are removed."""
    runtime: Runtime | None = None
    """Runtime of the cluster that a TrainJob refers to."""
    keeps_others: bool = False
    """Whether the remaining pods keep running if one is lost, for a supervisor that reuses them."""


class Workload(ABC):
    """A kind of owner object for the pods of an attempt. Pure: it returns manifests, and sends no request."""

    name: ClassVar[str]
    """Name of the kind as the value of `via:` in job files and targets."""
    api: ClassVar[str]
    kind: ClassVar[str]
    plural: ClassVar[str]
    """Resource name of the kind in URLs and roles."""
    parts: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Kind and resource name of the other objects that the kind needs, in the same API."""
    revives: ClassVar[bool] = False
    """Whether the controller recreates all pods, even long after their end, if objects that it created are deleted."""
    replaces_pods: ClassVar[bool] = False
    """Whether the controller recreates a deleted pod unless the owner object is deleted."""
    no_ttl: ClassVar[str] = ""
    """Why the cluster cannot remove the pods some time after their end; empty if it can."""
    container: ClassVar[str] = "node"
    """Container name that the controller requires in its pods."""

    @abstractmethod
    def made(self, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> list[Manifest]:
        """Returns the objects of an attempt, the owner object of the pods last.

        `meta` is the metadata of the owner object, including labels; `template` is the pod template.
        """

    @abstractmethod
    def host(self, name: str, subdomain: str, node: int) -> str:
        """Returns the host name of the pod of `node`; `name` is the name of the owner object, `subdomain` the run's
        Service.
        """

    @abstractmethod
    def resize(self, made: Manifest, num_nodes: int) -> None:
        """Sets the number of pods in an object that `made` returned."""

    def remakes(self, made: Mapping[str, Any]) -> bool:
        """Whether the controller of an object that `made` returned recreates lost pods until the object itself is
        deleted.
        """
        return self.replaces_pods
