"""What the ways to have pods made have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from windlass.engines.kubernetes.ways.runtimes import Runtime

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """How what makes the pods is to be."""

    num_nodes: int
    min_nodes: int
    """With how many the job may go on."""
    procs_per_node: int = 1
    ttl_seconds: int | None = None
    """How long after their end the cluster keeps them; None is until somebody removes them."""
    runtime: Runtime | None = None
    """Of the cluster, for a TrainJob that is to stand on it."""


class Way(ABC):
    """One kind of object that makes the pods of an attempt. Pure: it gives manifests, and sends nothing."""

    name: ClassVar[str]
    """As `via:` in job files and targets."""
    api: ClassVar[str]
    kind: ClassVar[str]
    plural: ClassVar[str]
    """What the kind is called in addresses, and in roles."""
    parts: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Kind and plural of what it needs beside that, in the same API."""
    revives: ClassVar[bool] = False
    """Whether it makes all of its pods anew, long after their end, when somebody has removed what it had made."""
    replaces_pods: ClassVar[bool] = False
    """Whether it makes a pod anew that was deleted, so that it has to be deleted itself where nobody wants that."""
    no_ttl: ClassVar[str] = ""
    """Why the cluster cannot be had to remove its pods some time after their end; empty where it can."""
    container: ClassVar[str] = "node"
    """What its pods' container has to be called."""

    @abstractmethod
    def made(self, meta: Manifest, template: Manifest, asked: Asked) -> list[Manifest]:
        """The objects of an attempt, the one that makes the pods last.

        `meta` is that object's metadata, labels included, and `template` the pods'.
        """

    @abstractmethod
    def host(self, name: str, subdomain: str, node: int) -> str:
        """The name by which pods find the one of `node`; `name` is the object's, `subdomain` the run's Service."""

    @abstractmethod
    def resize(self, made: Manifest, num_nodes: int) -> None:
        """Have an object that `made` gave make so many pods."""

    def remakes(self, made: Mapping[str, Any]) -> bool:
        """Whether what an object that `made` gave has lost comes again, unless it is deleted itself."""
        return self.replaces_pods

    def __str__(self) -> str:
        return self.kind
