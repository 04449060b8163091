"""Finds the cluster that a command names, by its cluster file or by the name of an existing cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.clusters.terraform.folder import ClusterFolder, FolderError
from windlass.errors import EngineError, UsageError
from windlass.runs.context import Context
from windlass.spec.text_file import read_text

if TYPE_CHECKING:
    from windlass.clusters.aws import Aws
    from windlass.clusters.eks.outputs import Outputs
    from windlass.clusters.terraform import Terraform
    from windlass.clusters.terraform.interrupts import StopRequests
    from windlass.spec.cluster import Cluster

FILE: Final = "cluster.yaml"
OUTPUTS: Final = "outputs.json"
KUBECONFIG: Final = "kubeconfig"
TARGETS: Final = "targets.yaml"
OnEvent = Callable[[Any], None]
"""Callback for Terraform events (`clusters.terraform.events`), component and drain steps, `StageStarted`, `Warned`."""


@dataclass(frozen=True, slots=True)
class StageStarted:
    """Event: a stage of a command starts."""

    text: str
    """Heading of the stage, such as `installing operators`."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Event: something that the user must check, because no later command reports it."""

    text: str


@dataclass(frozen=True, slots=True)
class ManagedCluster:
    """A cluster that Windlass manages: its cluster file and its working folder, which may not exist yet."""

    cluster: Cluster
    text: str
    """Text of the cluster file."""
    folder: ClusterFolder

    @property
    def kubeconfig(self) -> Path:
        """Path of the cluster's kubeconfig."""
        return self.folder.path / KUBECONFIG

    def aws(self, context: Context) -> Aws:
        """Creates AWS clients in the region of the cluster. Raises MissingExtra, AwsError."""
        from windlass.clusters.aws import Aws

        return Aws(self.cluster.region, environ=context.environ)

    def terraform(self, context: Context, on_event: OnEvent, stop: StopRequests | None = None) -> Terraform:
        """Returns the Terraform driver for the working folder. Raises MissingExtra if Terraform is not installed."""
        from windlass.clusters.terraform import Terraform, find_program

        return Terraform(find_program(context.environ), self.folder, context.environ, on_event=on_event, stop=stop)

    def outputs(self) -> Outputs | None:
        """Returns the outputs of the last `up`; None before the first one has finished. Raises FolderError for damaged
        outputs.
        """
        import json

        from windlass.clusters.eks.outputs import Outputs

        path = self.folder.path / OUTPUTS
        try:
            return Outputs.of(json.loads(path.read_bytes())) if path.exists() else None
        except (ValueError, TypeError, AttributeError, EngineError) as error:
            raise FolderError(f"{path} is damaged", "delete it; windlass cluster up writes it again") from error


def find(named: str | None, context: Context) -> ManagedCluster:
    """Resolves a cluster by file, by name, or by the cluster.yaml of the current directory.

    Raises UsageError if it does not exist, JobFileError for an invalid file, FolderError for a damaged folder.
    """
    if named is None:
        return _of_file(context.cwd / FILE, FILE, context)
    if (path := context.cwd / named).is_file():
        return _of_file(path, path.name, context)
    if path.suffix in (".yaml", ".yml"):
        raise UsageError(f"there is no file {named} in {context.cwd}", "write one: windlass cluster init")
    folder = ClusterFolder.of(context.home, named)
    if not (folder.path / FILE).is_file():
        known = ", ".join(one.name for one in all_of(context)) or "none"
        raise UsageError(f"no file and no cluster is called '{named}'", f"clusters of this user: {known}")
    return of_folder(folder, context)


def all_of(context: Context) -> list[ClusterFolder]:
    """Returns this user's cluster folders that contain a cluster file, sorted by name.

    Refused commands may leave folders without one.
    """
    return [one for one in ClusterFolder.all_in(context.home) if (one.path / FILE).is_file()]


def of_folder(folder: ClusterFolder, context: Context) -> ManagedCluster:
    """Returns the cluster of a working folder. Raises JobFileError for a damaged cluster file, FolderError for a copied
    folder.
    """
    path = folder.path / FILE
    found = _of_file(path, str(path), context)
    if found.cluster.name != folder.name:
        raise FolderError(
            f"{path} describes the cluster {found.cluster.name}",
            f"write name: {folder.name} there; if the folder is a copy, delete the copy",
        )
    return found


def _of_file(path: Path, shown: str, context: Context) -> ManagedCluster:
    from windlass.spec.parse import parse_cluster

    if not path.is_file():
        raise UsageError(f"there is no {path.name} in {path.parent}", "write one: windlass cluster init")
    text = read_text(path, shown)
    cluster = parse_cluster(text, shown)
    return ManagedCluster(cluster, text, ClusterFolder.of(context.home, cluster.name))
