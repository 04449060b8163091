"""The interface of a workload kind: the manifests of an attempt, and what its controller can do."""

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
    """What is requested of the owner object."""

    num_nodes: int
    min_nodes: int
    """With how many the job may go on."""
    procs_per_node: int = 1
    ttl_seconds: int | None = None
    """How long after their end the cluster keeps them; None is until they are removed."""
    runtime: Runtime | None = None
    """A runtime of the cluster, for a TrainJob that uses it."""
    keeps_others: bool = False
    """Whether the loss of a pod leaves the others as they are, for a supervisor that reuses them."""


class Workload(ABC):
    """One kind of owner object of the pods of an attempt. Pure: it gives manifests, and sends nothing."""

    name: ClassVar[str]
    """As `via:` in job files and targets."""
    api: ClassVar[str]
    kind: ClassVar[str]
    plural: ClassVar[str]
    """The name of the kind in URLs and roles."""
    parts: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Kind and plural of the other objects that it needs, in the same API."""
    revives: ClassVar[bool] = False
    """Whether it recreates all of its pods, long after their end, when what it had created is removed."""
    replaces_pods: ClassVar[bool] = False
    """Whether it recreates a deleted pod, so that it must be deleted itself to prevent that."""
    no_ttl: ClassVar[str] = ""
    """Why the cluster cannot remove its pods some time after their end; empty where it can."""
    container: ClassVar[str] = "node"
    """The required name of the container of its pods."""

    @abstractmethod
    def made(self, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> list[Manifest]:
        """The objects of an attempt, the owner of the pods last.

        `meta` is that object's metadata, labels included, and `template` the pods'.
        """

    @abstractmethod
    def host(self, name: str, subdomain: str, node: int) -> str:
        """The name by which pods find the one of `node`; `name` is the object's, `subdomain` the run's Service."""

    @abstractmethod
    def resize(self, made: Manifest, num_nodes: int) -> None:
        """Set the number of pods of an object that `made` gave."""

    def remakes(self, made: Mapping[str, Any]) -> bool:
        """Whether an object that `made` gave recreates what it has lost, unless it is deleted itself."""
        return self.replaces_pods
