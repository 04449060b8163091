"""A component: its pinned version, where it comes from, and what must be ready in the end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.components.values import ClusterValues

Json = Mapping[str, Any]
COMPONENT_LABEL: Final = "windlass.dev/component"
"""Of every object and every Helm release that was installed, and of the record: the name of its component."""
VERSION_ANNOTATION: Final = "windlass.dev/component-version"
SYSTEM: Final = "kube-system"


@dataclass(frozen=True, slots=True)
class Chart:
    """A Helm chart."""

    repository: str
    """`oci://…` or `https://…`, without the name of the chart."""
    name: str
    version: str
    sha256: str = ""
    """Of its archive, as its repository publishes it; empty where only the cluster knows it, from the first time on."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """A file of manifests that a project publishes for a version."""

    url: str
    sha256: str = ""
    """Of the file; empty as above."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Objects that Windlass makes from the outputs of the cluster."""

    make: Callable[[ClusterValues], Sequence[Json]]


@dataclass(frozen=True, slots=True)
class Ready:
    """An object that must be there and ready: a Deployment, a DaemonSet, a definition, an APIService."""

    kind: str
    name: str
    namespace: str = ""
    """Empty for the namespace of the component, or for a kind without namespaces."""


@dataclass(frozen=True, slots=True)
class Component:
    """One row of the table."""

    name: str
    version: str
    source: Chart | Manifests | Generated
    namespace: str
    ready: tuple[Ready, ...] = ()
    needs: tuple[str, ...] = ()
    """Components that it cannot be without: they are installed with it, before it."""
    after: tuple[str, ...] = ()
    """Components that are installed before it where they are installed with it."""
    values: Callable[[ClusterValues], Json] = lambda _: {}
    """Values of the chart, by the outputs of the cluster."""
    is_wanted: Callable[[ClusterValues], bool] = lambda _: True
    """Whether a cluster with these outputs is to have it."""


def crds(*names: str) -> tuple[Ready, ...]:
    """Custom resource definitions, by their names."""
    return tuple(Ready("CustomResourceDefinition", name) for name in names)
